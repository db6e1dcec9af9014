#!/bin/sh
# What a container of `Dockerfile` does, in an environment that has draftlens already and without a builder of images:
#
#     sh containers/steps.sh BIN PORT [OPTIONS OF draftlens serve]
#
# BIN is the folder of `draftlens` and `python`. The entry point and the health check are those of the Dockerfile. The server has the
# rights of a user: a home of its own, no variables but those of the image, and where this shell is root's, another user, or, where
# that one cannot read BIN, no capabilities. Prints the user, what the health check says, and an answer; the server's lines go to
# standard error.
set -eu

bin=$1
port=$2
shift 2
file=$(dirname "$0")/Dockerfile

# The words of an instruction of the Dockerfile, quoted for a shell.
words() {
    "$bin/python" -c '
import json, shlex, sys
lines = open(sys.argv[1]).read().replace("\\\n", " ").splitlines()
(line,) = (line for line in lines if line.startswith(sys.argv[2]))
print(shlex.join(json.loads(line[line.index("["):])))' "$file" "$1"
}

entry=$(words ENTRYPOINT)
check=$(words HEALTHCHECK)
home=$(mktemp -d)
server=
cleanup() {
    [ -z "$server" ] || kill -9 "$server" 2> /dev/null || true
    rm -rf "$home"
}
trap cleanup EXIT

rights=
if [ "$(id -u)" = 0 ]; then
    rights="setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs"
    if $rights sh -c '"$0" -c pass' "$bin/python" 2> /dev/null; then
        chown 65534:65534 "$home"
    else
        rights="setpriv --bounding-set=-all --inh-caps=-all --no-new-privs"
    fi
fi
in_image() {
    exec env -i PATH="$bin:/usr/bin:/bin" HOME="$home" PORT="$port" HF_HUB_OFFLINE=1 $rights "$@"
}

cd "$home"
(eval "in_image $entry \"\$@\"") >&2 &
server=$!
until (eval "in_image $check") 2> /dev/null; do
    kill -0 "$server" || exit 1
    sleep 0.2
done
echo "user: $(grep -E '^(Uid|CapEff):' "/proc/$server/status" | tr -s '\t\n' ' ')"
echo "health: yes"
"$bin/python" -c '
import json, sys, urllib.request
message = {"role": "user", "content": "Describe the image."}
body = {"model": "embedded", "messages": [message], "max_tokens": 24, "temperature": 0}
request = urllib.request.Request(
    f"http://127.0.0.1:{sys.argv[1]}/v1/chat/completions",
    json.dumps(body).encode(),
    {"Content-Type": "application/json"},
)
answer = json.load(urllib.request.urlopen(request, timeout=60))
print("tokens:", answer["usage"]["completion_tokens"])
print("answer:", answer["choices"][0]["message"]["content"])' "$port"
kill -TERM "$server"
wait "$server"
echo "ended: $?"
server=
