"""Files whose content is run belong to this user alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from draftlens.core.files import check_private, private_folder


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To another user, or let this process be of another one where it may not."""
    if os.geteuid():
        own = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    else:
        os.chown(path, 12345, 12345, follow_symlinks=False)


def test_a_folder_is_made_for_this_user(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        made = private_folder(tmp_path / "new" / "own")
    finally:
        os.umask(before)
    assert made.stat().st_mode & 0o777 == 0o700
    assert private_folder(made) == made


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_what_others_may_write_is_refused(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "code"
    path.touch(0o600)
    check_private(path)
    path.chmod(mode)
    with pytest.raises(PermissionError, match=r"code may be written by other users: run chmod"):
        check_private(path)
    tmp_path.chmod(mode)
    with pytest.raises(PermissionError, match="may be written by other users"):
        private_folder(tmp_path)


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_what_belongs_to_another_user_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "other"
    if kind == "folder":
        path.mkdir(0o700)
    else:
        (tmp_path / "own").mkdir(0o700)
        path.symlink_to(tmp_path / "own")
    check_private(path)
    give_away(path, monkeypatch)
    with pytest.raises(PermissionError, match="other belongs to another user"):
        private_folder(path)
