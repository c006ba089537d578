"""The page with a password, against a real server."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.web

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def log_in(server: Any, password: str, **more: Any) -> Any:
    return server.request("POST", "/login", f"username=ada&password={password}".encode(), FORM, **more)


def cookie_of(answer: Any) -> str:
    return "; ".join(value.split(";")[0] for value in answer.headers.get_all("Set-Cookie"))


def test_without_the_password_there_is_nothing_but_the_form(protected: Any) -> None:
    page = protected.request("GET", "/")
    assert page.status == 200 and b'"auth_required":true' in page.body and b"flow-compute-pair" not in page.body
    assert b"flow_pair" not in page.body
    for path in ("/config", "/gradio_api/app_id", "/gradio_api/heartbeat/abc", "/gradio_api/queue/data?session_hash=a"):
        assert protected.request("GET", path).status == 401
    kept = protected.folder / "served" / ("0" * 64) / "result.txt"
    kept.parent.mkdir()
    kept.write_text("private")
    assert protected.request("GET", f"/gradio_api/file={kept}").status == 401
    kept.unlink()
    kept.parent.rmdir()
    for path in ("/gradio_api/queue/join", "/gradio_api/run/predict", "/gradio_api/upload"):
        assert protected.request("POST", path, {"data": [], "fn_index": 0, "session_hash": "a"}).status == 401
    for cookie in ("access-token=x", "access-token-unsecure-=; =", "=", "a;b;;c"):
        assert protected.request("GET", "/config", headers={"Cookie": cookie}).status == 401


def test_the_password_opens_the_page(protected: Any) -> None:
    assert log_in(protected, "l0ve").status == 400
    answer = log_in(protected, "l0ve:lace")
    assert answer.status == 200 and "SameSite=none" not in str(answer.headers)
    assert all("HttpOnly" in value for value in answer.headers.get_all("Set-Cookie"))
    assert len(protected.config(cookie_of(answer))["dependencies"]) > 9


def test_login_attempts_are_limited(protected: Any) -> None:
    guesser = "127.0.0.2"
    statuses = [log_in(protected, f"guess{number}", client=guesser).status for number in range(12)]
    assert statuses == [400] * 10 + [429] * 2
    late = log_in(protected, "l0ve:lace", client=guesser)
    assert late.status == 429 and 0 < int(late.headers["Retry-After"]) <= 60
    assert log_in(protected, "l0ve:lace").status == 200


def test_given_names_and_numeric_addresses_are_allowed(protected: Any) -> None:
    for host in ("lab.example", "LAB.example:443", "192.168.1.5:7860", "localhost"):
        assert protected.request("GET", "/", headers={"Host": host}).status == 200
    assert protected.request("GET", "/", headers={"Host": "evil.example"}).status == 421
    origin = {"Host": "lab.example", "Origin": "https://lab.example"}
    assert protected.request("POST", "/login", b"username=a&password=b", {**FORM, **origin}).status == 400
    assert protected.request("POST", "/login", b"username=a&password=b", {**FORM, "Origin": "http://a"}).status == 403


def test_serving_to_other_machines_prints_a_warning(protected: Any) -> None:
    log = (protected.temporary / "log.txt").read_text()
    assert "warning: other machines reach the page at 0.0.0.0; the password and all files cross the network" in log
    assert "l0ve" not in log and "l0ve" not in Path(f"/proc/{protected.process.pid}/cmdline").read_text()


def test_the_form_works_in_a_browser(browser: Any, protected: Any) -> None:
    context = browser.new_context()
    tab = context.new_page()
    tab.set_default_timeout(30_000)
    tab.goto(protected.address)
    tab.get_by_label("username").fill("ada")
    tab.get_by_label("password").fill("l0ve:lace")
    tab.get_by_role("button", name="Login").click()
    tab.wait_for_selector("#flow-compute-pair")
    tab.get_by_role("button", name="Street (rendered)").click()
    tab.wait_for_selector("#flow-second img")
    tab.click("#flow-compute-pair")
    tab.wait_for_selector("#flow-message .pf-note")
    with tab.expect_download() as downloading:
        tab.click("#flow-download-flo")
    assert downloading.value.suggested_filename == "motion.flo"
    context.close()
