"""Access to the page: hosts, origins, passwords and their options, without a browser and gradio."""

import socket
import sys
from pathlib import Path

import pytest

from protoformer.errors import InputError
from protoformer.web.access import (
    AllowedHosts,
    Credentials,
    LoginThrottle,
    choose_credentials,
    is_loopback,
    public_options,
    same_origin,
)
from protoformer.web.security import page_routes, served_file


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0 lets other machines use the page; add --auth-file FILE"),
        (["--host", "::"], "--host :: lets other machines use the page"),
        (["--host", "192.168.7.7"], "or --no-auth to let anyone in"),
        (["--auth", "ada"], "--auth (or PROTOFORMER_AUTH) must be one line of user:password"),
        (["--auth", ":secret"], "neither may be empty"),
        (["--auth", "ada:"], "neither may be empty"),
        (["--auth-file", "missing.txt"], "--auth-file missing.txt cannot be read"),
        (["--auth", "ada:secret", "--no-auth"], "exclude each other"),
        (["--allowed-host", "https://pf.example.org"], "--allowed-host https://pf.example.org is not a host name"),
        (["--allowed-host", "pf.example.org:80"], "without port"),
        (["--allowed-host", "*"], "is not a host name"),
    ],
)
def test_options_that_would_open_the_page_by_mistake_are_refused(
    arguments: list[str],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    from protoformer.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["protoformer", "serve", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    error = capsys.readouterr().err
    assert ended.value.code == 2 and reason in error
    assert "secret" not in error and "Traceback" not in error


def test_a_password_is_read_from_the_first_line_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("ada:love:lace\nignored\n")
    credentials = choose_credentials(None, path, False, "0.0.0.0")
    assert credentials is not None and credentials.match("ada", "love:lace")
    assert not any(credentials.match(*pair) for pair in (("ada", "love"), ("", ""), ("ada\0", "love:lace")))
    assert "lace" not in repr(credentials)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="cannot be read"):
        choose_credentials(None, path, False, "0.0.0.0")


def test_this_machine_alone_needs_no_password() -> None:
    for host in ("127.0.0.1", "127.3.2.1", "::1", "[::1]", "localhost"):
        assert is_loopback(host) and choose_credentials(None, None, False, host) is None
    for host in ("0.0.0.0", "::", "[::]", "10.0.0.1", "no-such-name.invalid"):
        assert not is_loopback(host)
    assert choose_credentials(None, None, True, "0.0.0.0") is None
    assert choose_credentials("a:b", None, False, "127.0.0.1") == Credentials("a", "b")


def test_names_of_the_page() -> None:
    local, open_to_all = AllowedHosts("127.0.0.1"), AllowedHosts("0.0.0.0", ("PF.example.org", "[fe80::1]"))
    for host in ("localhost", "localhost:7860", "127.0.0.1:80", "[::1]:7860", "127.1.1.1"):
        assert local.allows(host) and open_to_all.allows(host)
    for host in ("192.168.1.5:7860", "[2001:db8::1]", "pf.example.org:443", "PF.EXAMPLE.ORG", "[fe80::1]"):
        assert open_to_all.allows(host) and not local.allows(host)
    broken = (
        "",
        " localhost",
        "localhost.",
        "localhost:",
        "::1",
        "a@localhost",
        "[localhost]",
        "localhost:x",
        "0x7f.1",
    )
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example#localhost", *broken):
        assert not open_to_all.allows(host) and not local.allows(host)
    assert AllowedHosts("lab.example").allows("lab.example:7860")


def test_origins_of_the_page() -> None:
    for origin, host in (
        ("http://localhost:7860", "localhost:7860"),
        ("http://localhost", "localhost:80"),
        ("https://pf.example.org", "pf.example.org"),
        ("https://PF.example.org", "pf.example.org:443"),
    ):
        assert same_origin(origin, host)
    for origin in (
        "null",
        "",
        "http://localhost",
        "http://localhost:7861",
        "file://",
        "ws://localhost:7860",
        "localhost",
    ):
        assert not same_origin(origin, "localhost:7860")
    assert not same_origin("http://localhost:7860.evil.example", "localhost:7860")


def test_passwords_can_be_tried_ten_times_a_minute() -> None:
    now = [0.0]
    throttle = LoginThrottle(lambda: now[0])
    assert [throttle.wait("10.0.0.1") for _ in range(10)] == [0.0] * 10
    now[0] = 20.0
    assert throttle.wait("10.0.0.1") == 40.0 and throttle.wait("::ffff:10.0.0.1") == 40.0
    assert throttle.wait("10.0.0.2") == 0.0
    now[0] = 61.0
    assert throttle.wait("10.0.0.1") == 0.0
    for last in range(10):
        throttle.wait(f"2001:db8::{last}")
    assert throttle.wait("2001:db8::ffff") > 0.0 and throttle.wait("2001:db8:0:1::1") == 0.0
    throttle.reset("2001:db8::1")
    assert throttle.wait("2001:db8::ffff") == 0.0


def test_many_clients_do_not_fill_the_memory() -> None:
    throttle = LoginThrottle(lambda: 0.0)
    waits = [throttle.wait(f"10.1.{number // 256}.{number % 256}") for number in range(5000)]
    assert waits[:4096] == [0.0] * 4096 and set(waits[4096:]) == {60.0}


def test_only_plain_files_below_the_folder_are_served(tmp_path: Path) -> None:
    root = tmp_path.resolve() / "served"
    folder, link = root / ("0" * 64), root / ("1" * 64)
    folder.mkdir(parents=True)
    link.symlink_to(folder)
    file, outside = folder / "one two.png", tmp_path / ("0" * 64) / "outside.png"
    outside.parent.mkdir()
    for path in (file, outside, root / "being uploaded", folder.parent / "other.png"):
        path.touch()
    (folder / "link.png").symlink_to(file)
    (folder / "loop").symlink_to(folder / "loop")
    assert served_file(str(file), root) == file
    odd = [f"{folder}/../{folder.name}/{file.name}", f"{folder}//{file.name}", f"{folder}/./{file.name}", f"{file}/"]
    other = [outside, root, folder, folder / "link.png", link / file.name, folder / "gone.png", root / "being uploaded"]
    other += [folder / "loop", folder / ("a" * 300), Path.cwd()]
    for path in (*odd, *map(str, other), f"{file}\0", file.name, "", None, 3, [str(file)], f"file://{file}"):
        assert served_file(path, root) is None


def test_the_list_of_routes_is_short() -> None:
    """A new route needs a review of what it can do."""
    posts = {route.pattern.pattern for route in page_routes(10**6, True) if "POST" in route.methods}
    assert posts == {"/login", "/gradio_api/upload", "/gradio_api/(?:queue/join|run/predict|cancel)"}
    public = {route.pattern.pattern for route in page_routes(10**6, False) if route.public}
    assert all("gradio_api" not in pattern or pattern.endswith("startup-events") for pattern in public)
    assert {method for route in page_routes(1, True) for method in route.methods} == {"GET", "HEAD", "POST"}


def test_a_name_that_others_reach_needs_a_password_too() -> None:
    with pytest.raises(InputError, match=r"--allowed-host pf\.example lets other machines use the page; "):
        choose_credentials(None, None, False, "127.0.0.1", ("pf.example",))
    assert choose_credentials(None, None, True, "127.0.0.1", ("pf.example",)) is None
    assert choose_credentials("a:b", None, False, "127.0.0.1", ("pf.example",)) == Credentials("a", "b")
    assert choose_credentials(None, None, False, "127.0.0.1", ("localhost",)) is None


def test_a_name_that_is_this_machine_in_its_own_hosts_file_is_public(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [entry])
    assert is_loopback("lab.example")  # as an address to listen at
    assert public_options("127.0.0.1", ("lab.example",)) == ["--allowed-host lab.example"]
    assert public_options("127.0.0.1", ("localhost", "127.0.0.1", "[::1]")) == []
    with pytest.raises(InputError, match=r"--allowed-host lab\.example lets other machines use the page; "):
        choose_credentials(None, None, False, "127.0.0.1", ("lab.example",))
