"""The server: answers of requests alone and together, streams, and what is refused."""

import http.client
import json
import signal
import subprocess
import sys
import threading

import pytest

from tests.models.model_files import weights, write_gguf
from volta import models, nn, random
from volta.commands.main import main
from volta.core.errors import ArgumentError
from volta.models import server as serving

CONFIG = models.Config(vocabulary=17, width=16, layers=1, heads=2, key_heads=1, head_size=8, hidden=24, context=64)
MODEL = models.random_decoder(CONFIG)


class Letters:
    """Two tokens a letter: so a token alone is a part of a character."""

    def encode(self, text):
        return [ord(c) % 17 for c in text]

    def decode(self, tokens):
        whole = "".join(chr(97 + t) for t in tokens[1::2])
        return whole + "\N{REPLACEMENT CHARACTER}" * (len(tokens) % 2)


@pytest.fixture(params=[None, Letters()], ids=["numbers", "text"], scope="module")
def server(request):
    found = models.serve(MODEL, port=0, rows=2, vocabulary=request.param, name="small")
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    yield found
    found.shutdown()
    found.server_close()
    thread.join()


def send(server, body, method="POST", path="/v1/completions", headers=None):
    connection = http.client.HTTPConnection(*server.server_address, timeout=60)
    data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
    connection.request(method, path, data, headers or {})
    answer = connection.getresponse()
    found = answer.read()
    connection.close()
    return answer.status, found


def asked(server, **fields):
    status, found = send(server, fields)
    assert status == 200, found
    return json.loads(found)


def alone(prompt, max_tokens, seed=0, **settings):
    sampling = nn.Sampling(**{"temperature": 1.0, **settings})
    return list(models.generate(MODEL, prompt, max_tokens=max_tokens, sampling=sampling, key=random.key(seed)))


def test_an_answer_is_that_of_the_model(server):
    found = asked(server, prompt=[1, 2, 3], max_tokens=5, seed=7, temperature=0.5, top_k=4, model="whatever")
    (choice,) = found["choices"]
    assert choice["tokens"] == alone([1, 2, 3], 5, 7, temperature=0.5, top_k=4) and choice["finish_reason"] == "length"
    assert found["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    assert (found["model"], found["object"]) == ("small", "text_completion")
    assert len(asked(server, prompt=[1])["choices"][0]["tokens"]) == 16


def test_requests_at_once_are_answered_as_alone(server):
    answers = {}

    def ask(seed):
        answers[seed] = asked(server, prompt=[seed, 1], max_tokens=3 + seed, seed=seed)["choices"][0]["tokens"]

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {seed: alone([seed, 1], 3 + seed, seed) for seed in range(7)}


def test_streams(server):
    status, raw = send(server, {"prompt": [1, 2], "max_tokens": 5, "stream": True})
    *events, end, rest = raw.decode().split("\n\n")
    assert (status, end, rest) == (200, "data: [DONE]", "")
    choices = [json.loads(e.removeprefix("data: "))["choices"][0] for e in events]
    tokens = [t for c in choices for t in c["tokens"]]
    assert tokens == alone([1, 2], 5) and [c["finish_reason"] for c in choices] == [None] * 5 + ["length"]
    text = "".join(c["text"] for c in choices)
    assert text == ("" if server.vocabulary is None else server.vocabulary.decode(tokens))


def test_texts_and_stops(server):
    made = alone([1, 2], 9)
    found = asked(server, prompt=[1, 2], max_tokens=9, stop_token_ids=[made[4]])["choices"][0]
    assert found["tokens"] == made[: made.index(made[4])] and found["finish_reason"] == "stop"
    if server.vocabulary is None:
        status, text = send(server, {"prompt": "hello"})
        assert status == 400 and b"has no vocabulary" in text
    else:
        found = asked(server, prompt="hello", max_tokens=4)["choices"][0]
        assert found["text"] == server.vocabulary.decode(alone(server.vocabulary.encode("hello"), 4))


@pytest.mark.parametrize(
    "body, why",
    [
        (b"{", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        ([1], "must be an object"),
        ({}, "prompt must be a list of tokens"),
        ({"prompt": [1.5]}, "prompt must be a list of tokens"),
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": [99]}, "the prompt holds 99"),
        ({"prompt": [1] * 65}, "has 65 tokens"),
        ({"prompt": [1], "max_tokens": "x"}, "max_tokens must be an integer"),
        ({"prompt": [1], "temperature": -1}, "temperature must be 0 or more"),
        ({"prompt": [1], "temperature": True}, "temperature must be a number"),
        ({"prompt": [1], "temperature": 10**400}, "temperature must be a number"),
        (b'{"prompt": [1], "temperature": NaN}', "temperature must be a number"),
        ({"prompt": [1], "temperature": 1e39}, "temperature must be 0 or more, and finite in float32, got 1e+39"),
        ({"prompt": [1], "repetition_penalty": 1e-50}, "repetition_penalty must be above 0, and finite in float32"),
        ({"prompt": [1], "stream": 1}, "stream must be true or false"),
        ({"prompt": [1], "n": 2}, "n is not there"),
        ({"prompt": [1], "beams": 2}, "there is no field 'beams'"),
    ],
    ids=str,
)
def test_requests_that_are_refused(server, body, why):
    status, found = send(server, body)
    message = json.loads(found)["error"]["message"]
    assert status == 400 and why in message and "\n" not in message, "who asks learns nothing of the server's files"
    assert asked(server, prompt=[1], max_tokens=1)["choices"][0]["tokens"] == alone([1], 1)


def test_half_of_a_surrogate_pair_is_no_text(server):
    status, found = send(server, b'{"prompt": "a\\ud800"}')
    assert status == 400 and b"half of a surrogate pair" in found


def test_nothing_is_said_of_who_went_away(server, capsys):
    for error in (ConnectionResetError(), BrokenPipeError(), ZeroDivisionError()):
        try:
            raise error
        except Exception:
            server.handle_error(None, ("here", 1))
        assert ("ZeroDivisionError" in capsys.readouterr().err) == isinstance(error, ZeroDivisionError)


def test_other_requests(server):
    assert json.loads(send(server, None, "GET", "/v1/models")[1])["data"][0]["id"] == "small"
    assert send(server, None, "GET", "/x")[0] == send(server, {}, path="/x")[0] == 404
    assert send(server, b"", headers={"Content-Length": str(serving.MAX_BODY + 1)})[0] == 413
    assert send(server, b"", headers={"Content-Length": "-1"})[0] == 411


def test_who_stops_listening_cancels():
    engine = serving.Engine(MODEL, rows=1, length=None)
    ask = serving.asking.read(b'{"prompt": [1], "max_tokens": 1000}', None)
    first = engine.ask(ask)
    next(first)
    first.close()
    short = serving.asking.read(b'{"prompt": [1], "max_tokens": 2}', None)
    assert list(engine.ask(short)) == [*alone([1], 2), "length"]
    engine.close()


def test_a_step_that_fails_is_told_to_all_and_the_next_goes_on(monkeypatch):
    engine = serving.Engine(MODEL, rows=1, length=None)
    ask = serving.asking.read(b'{"prompt": [1], "max_tokens": 3}', None)
    step = engine._batch.step

    def failing():
        monkeypatch.setattr(engine._batch, "step", step)
        raise RuntimeError("no memory")

    monkeypatch.setattr(engine._batch, "step", failing)
    with pytest.raises(RuntimeError, match="no memory"):
        list(engine.ask(ask))
    assert list(engine.ask(ask)) == [*alone([1], 3), "length"]
    engine.close()


def test_the_command_says_what_it_cannot_serve(tmp_path, capsys):
    assert main(["serve", str(tmp_path / "none.gguf")]) == 2
    assert "No such file" in capsys.readouterr().err
    with pytest.raises(ArgumentError, match="rows must be positive"):
        models.serve(MODEL, port=0, rows=0)


@pytest.mark.slow
def test_the_command_serves_a_file(tmp_path):
    """As people run it: a process of its own, which an interrupt ends."""
    write_gguf(tmp_path / "m.gguf", "llama", weights("llama"))
    process = subprocess.Popen(
        [sys.executable, "-m", "volta", "serve", str(tmp_path / "m.gguf"), "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    port = int(process.stdout.readline().split(":")[2].split("/")[0])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": [1, 2], "max_tokens": 3, "temperature": 0}))
    found = json.loads(connection.getresponse().read())
    connection.close()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert found["model"] == "m" and len(found["choices"][0]["tokens"]) == 3
    assert process.returncode == 0 and said.startswith("prompts are lists of tokens: ")
