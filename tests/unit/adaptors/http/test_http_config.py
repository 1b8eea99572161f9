"""Accepted settings of the HTTP writer, and the redaction of their secrets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError
from transporter_adaptors.http import config as config_module
from transporter_adaptors.http.config import OWNED, HttpWriterConfig, OAuth2, secrets_of

from transporter.pipeline.config import load
from transporter.pipeline.problems import InvalidPipeline

URL = "https://receiver.test/in"
OAUTH2 = {"token_url": "https://t.test/x", "client_id": "ada", "client_secret": "opensesame"}
PIPELINE = """\
readers:
  - {name: in, adaptor: demo}
routes:
  - name: out
    writer:
      adaptor: http
      url: https://receiver.test/in
      headers:
        Authorization: Bearer hunter2hunter2
"""


def config(**settings: object) -> HttpWriterConfig:
    """Return a configuration with *settings* and a URL."""
    return HttpWriterConfig.model_validate({"url": URL, **settings})


def test_the_readme_names_every_setting() -> None:
    """Each table has one row for each setting, in order, and no other."""
    page = Path(config_module.__file__).with_name("README.md").read_text()
    for heading, model in (("# http", HttpWriterConfig), ("## Access tokens", OAuth2)):
        table = page.split(f"{heading}\n")[1].split("\n##")[0]
        rows = re.findall(r"^\| (`\w+`.*?) \|", table, re.MULTILINE)
        named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
        assert named == list(model.model_fields)


def test_the_defaults() -> None:
    """By default entries are posted as arrays of at most 500 entries and one MiB."""
    found = config()
    assert (found.method, found.format, found.headers) == ("POST", "entries", {})
    assert (found.batch_rows, found.batch_bytes, found.timeout) == (500, 1024**2, 10.0)
    assert (found.retry_after_max, found.ca_file) == (300.0, None)
    assert (found.methods, found.compression, found.oauth2, found.parsed_proxy) == (
        {},
        "none",
        None,
        None,
    )


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h", ("http", "h", 80, "/")),
        ("https://h", ("https", "h", 443, "/")),
        ("HTTPS://Host.Test:8443/a/b?c=d&e=%20", ("https", "host.test", 8443, "/a/b?c=d&e=%20")),
        ("http://[::1]:9/x", ("http", "::1", 9, "/x")),
        ("http://127.0.0.1:9?q", ("http", "127.0.0.1", 9, "/?q")),
    ],
)
def test_a_url_leads_to_an_origin_and_a_path(url: str, expected: tuple[object, ...]) -> None:
    """A URL gives the scheme, the host, the port, and the path with its query."""
    assert tuple(config(url=url).target) == expected


@pytest.mark.parametrize(
    "url",
    [
        "",
        "receiver.test/in",
        "receiver.test:80/in",
        "//receiver.test/in",
        "ftp://receiver.test/in",
        "file:///etc/passwd",
        "http://",
        "http:///in",
        "http://:80/",
        "http://user@receiver.test/",
        "http://user:hunter2@receiver.test/",
        "http://receiver.test/in#there",
        "http://receiver.test:0/",
        "http://receiver.test:65536/",
        "http://receiver.test:x/",
        "http://receiver.test/a b",
        "http://receiver.test/a\r\nX: y",
        "http://[::1/",
    ],
)
def test_a_url_that_cannot_be_is_refused_and_not_repeated(url: str) -> None:
    """A URL without scheme or host, or with a password or fragment, is refused and not repeated."""
    with pytest.raises(ValidationError) as failure:
        config(url=url)
    assert "hunter2" not in str(failure.value)
    assert "receiver.test" not in str(failure.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "GET"},
        {"methods": {"remove": "DELETE"}},
        {"methods": {"delete": "GET"}},
        {"url": "http://h/{offset}"},
        {"url": "http://h/{key!r}"},
        {"url": "http://h/{}"},
        {"url": "http://h/{key"},
        {"url": "http://{namespace}.test/"},
        {"url": "http://h:{key}/"},
        {"url": "{key}://h/"},
        {"url": "http://h/../{key}"},
        {"compression": "zstd"},
        {"cert_file": "c.pem"},
        {"key_file": "k.pem"},
        {"key_password": "hunter2"},
        {"url": "http://h/", "cert_file": "c.pem", "key_file": "k.pem"},
        {"proxy": "https://proxy.test:3128"},
        {"proxy": "proxy.test:3128"},
        {"proxy": "http://proxy.test:3128/path"},
        {"proxy": "http://proxy.test:3128?x"},
        {"proxy": "http://:3128"},
        {"oauth2": {}},
        {"oauth2": {**OAUTH2, "token_url": "receiver.test"}},
        {"oauth2": {**OAUTH2, "client_secret": ""}},
        {"oauth2": {**OAUTH2, "parameters": {"scope": "x"}}},
        {"oauth2": OAUTH2, "headers": {"authorization": "x"}},
        {"method": "post"},
        {"format": "xml"},
        {"batch_rows": 0},
        {"batch_bytes": 0},
        {"timeout": "0s"},
        {"retry_after_max": "2d"},
        {"verify": False},
        {"url": "http://h/", "ca_file": "ca.pem"},
        {"format": "data", "batch_rows": 5},
        {"format": "data", "batch_bytes": 5},
        {"headers": {"a b": "x"}},
        {"headers": {"": "x"}},
        {"headers": {"X:": "x"}},
        {"headers": {"X": "a\r\nY: b"}},
        {"headers": {"X": "é"}},
        {"headers": {"X": ""}},
        {"headers": {"X": 1}},
        {"headers": {"X-A": "1", "x-a": "2"}},
        {"headers": {"Entry-Id": "1"}},
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, object]) -> None:
    """Unknown methods, formats and keys, and headers that would break the request, are refused."""
    with pytest.raises(ValidationError):
        config(**settings)


@pytest.mark.parametrize("name", sorted(OWNED))
def test_a_header_that_the_writer_sends_itself_is_refused(name: str) -> None:
    """Each header that the guarantees depend on is refused by name, with the reason."""
    with pytest.raises(ValidationError) as failure:
        config(headers={name.title(): "x", "X-Fine": "y"})
    assert f"{name}: {OWNED[name]}" in str(failure.value)


def test_no_header_is_shown_in_an_error_or_in_the_text_of_a_configuration() -> None:
    """Neither a refused nor an accepted configuration shows a URL or the value of a header."""
    with pytest.raises(ValidationError) as failure:
        config(headers={"Host": "x", "Authorization": "Bearer hunter2"})
    found = config(url=URL + "?token=hunter2", headers={"Authorization": "Bearer hunter2"})
    assert "hunter2" not in str(failure.value)
    assert "hunter2" not in repr(found)
    assert URL not in repr(found)


def test_no_secret_of_proxy_key_or_client_is_shown(tmp_path: Path) -> None:
    """Neither the settings' text nor a pipeline's output shows a secret, in any encoding."""
    proxy = "http://me:hunter2hunter2@proxy.test:3128"
    found = config(proxy=proxy, oauth2=OAUTH2)
    assert not [each for each in ("hunter2", "opensesame", "t.test") if each in repr(found)]
    assert {"hunter2hunter2", "opensesame", "ada:opensesame"} <= set(secrets_of(found))
    more = f"      proxy: {proxy}\n      oauth2: {{token_url: 'https://t.test/x', client_id: ada, "
    text = PIPELINE.partition("      headers")[0] + more + "client_secret: open+sesame}\n"
    (tmp_path / "p.yaml").write_text(text)
    shown = load(tmp_path / "p.yaml", {}).secrets.hide("open+sesame open%2Bsesame hunter2hunter2")
    assert shown == "*** *** ***"


def test_what_a_receiver_may_repeat_of_a_secret_is_known() -> None:
    """The value of a credential header is a secret as a whole and in its parts."""
    found = secrets_of(
        config(
            url=URL + "?token=a%2Fb",
            headers={
                "Authorization": "Basic dXNlcjpodW50ZXIy",  # user:hunter2
                "X-Api-Key": "opensesame",
                "X-Tenant": "shop",
            },
        )
    )
    assert set(found) == {
        URL + "?token=a%2Fb",
        "/in?token=a%2Fb",
        "/in?token=a/b",
        "Basic dXNlcjpodW50ZXIy",
        "dXNlcjpodW50ZXIy",
        "user:hunter2",
        "hunter2",
        "opensesame",
    }
    assert [len(each) for each in found] == sorted(map(len, found), reverse=True)


def test_a_pipeline_hides_the_headers_that_tell_of_secrets(tmp_path: Path) -> None:
    """A header whose name suggests a secret is redacted in all output of the pipeline."""
    (tmp_path / "p.yaml").write_text(PIPELINE + "        X-Tenant: shopkeeper\n")
    pipeline = load(tmp_path / "p.yaml", {})
    shown = pipeline.secrets.hide("Bearer hunter2hunter2 of shopkeeper")
    assert shown == "*** of shopkeeper"
    assert "hunter2" not in repr(pipeline)


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("https://receiver", "receiver", 7, "url must begin with http:// or https://"),
        ("https://", "https://me:hunter2@", 7, "url must not hold a user or password"),
        ("url:", "method: FETCH\n      url:", 7, "method must be 'POST', 'PUT', 'PATCH' or"),
        ("Authorization", "Content-Length", 8, "content-length: the body decides"),
        ("Bearer", '"Bearer\\n"  #', 8, "the value of Authorization must be printable"),
        ("url: https:", "ca_file: x\n      url: http:", 5, "writer has a ca_file, and a url that"),
        ("headers", "heders", 8, "did you mean 'headers'"),
        ("url: https://receiver.test/in", "format: data", 5, "url is missing"),
        ("/in", "/in/{offset}", 7, "the fields {namespace} and {key} and no other"),
        ("receiver.test", "{namespace}.test", 7, "fields in its path and query only"),
        ("url:", "methods: {remove: PUT}\n      url:", 7, "there are insert, update, delete"),
        ("url:", "proxy: socks://me:hunter2@h\n      url:", 7, "proxy must have the form http://"),
        ("url:", "cert_file: c\n      url:", 5, "cert_file and key_file go together"),
    ],
)
def test_a_wrong_setting_is_told_with_file_and_line(
    tmp_path: Path, old: str, new: str, line: int, words: str
) -> None:
    """Each mistake is reported at its line when the pipeline is loaded, without any secret."""
    (tmp_path / "p.yaml").write_text(PIPELINE.replace(old, new, 1))
    with pytest.raises(InvalidPipeline) as failure:
        load(tmp_path / "p.yaml", {})
    (problem,) = failure.value.problems
    assert problem.line == line
    assert words in str(problem)
    assert str(problem).startswith(f"{tmp_path / 'p.yaml'}:{line}: ")
    assert "hunter2" not in str(failure.value)
