from draftlens.cli import main

main()
