"""The process that runs an ONNX model: texts come in on standard input, vectors go out on standard
output (see `frames`). Started by OnnxEmbedder only; it ends when its input does.

    python -m extproc.embedders.onnx_worker MODEL.onnx TOKENIZER.json MOST_TOKENS

A process and not a thread: loading the model, and tokenising, hold Python's lock for up to half a
second; a thread of lower priority that holds it would hold up the event loop; and a crash in native
code ends this process alone.
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from extproc.embedders.frames import FAILED, LENGTH, READY, TOO_LONG, VECTOR, frame
from extproc.embedders.protocol import Vector, unit_vector

# Behind the gateway, and behind an Envoy on the same machine: an embedding may wait, they may not.
_NICENESS = 10


class TooLong(Exception):
    """`args[0]`: how many tokens the text has."""


class OnnxModel:
    """A sentence-embedding model, on one core.

    model      Its inputs are `input_ids`, `attention_mask` and, if it has it, `token_type_ids`. Its
               first output is (1, tokens, dimensions), of which the mean over all tokens is taken
               (as all-MiniLM-L6-v2 wants it), or (1, dimensions), which is taken as it is.
    tokenizer  A tokenizer.json of the library `tokenizers`; its own padding and truncation are not
               used.
    """

    def __init__(self, model: Path, tokenizer: Path, most_tokens: int) -> None:
        import onnxruntime
        from tokenizers import Tokenizer

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            str(model), options, providers=["CPUExecutionProvider"]
        )
        self._inputs = {each.name for each in self._session.get_inputs()}
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = True  # "[SEP]" in a text is five characters
        self._most_tokens = most_tokens
        self.dimensions = len(self.embed("a"))
        self.name = _name_of(model, tokenizer)

    def embed(self, text: str) -> Vector:
        ids = self._tokenizer.encode(text).ids
        if len(ids) > self._most_tokens:
            raise TooLong(len(ids))
        row = np.array([ids], dtype=np.int64)
        feed = {
            "input_ids": row,
            "attention_mask": np.ones_like(row),
            "token_type_ids": np.zeros_like(row),
        }
        output: Any = self._session.run(
            None, {name: feed[name] for name in feed if name in self._inputs}
        )[0]
        return unit_vector(output[0].mean(axis=0) if output.ndim == 3 else output[0])


def _name_of(model: Path, tokenizer: Path) -> str:
    """The same name for the same files, wherever they lie."""
    digest = hashlib.sha256()
    for path in (model, tokenizer):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"onnx-{digest.hexdigest()[:16]}"


def _serve(model: OnnxModel, texts: BinaryIO, answers: BinaryIO) -> None:
    """Until the texts end."""
    while len(length := texts.read(LENGTH.size)) == LENGTH.size:
        text = texts.read(*LENGTH.unpack(length)).decode()
        try:
            answer = VECTOR + model.embed(text).tobytes()
        except TooLong as error:
            answer = TOO_LONG + b"%d" % error.args[0]
        _say(answers, answer)


def _say(answers: BinaryIO, content: bytes) -> None:
    answers.write(frame(content))
    answers.flush()


def main(model: str, tokenizer: str, most_tokens: str) -> int:
    os.nice(_NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the owner ends this one
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not stand among the answers
    try:
        loaded = OnnxModel(Path(model), Path(tokenizer), int(most_tokens))
    except Exception as error:  # whatever it is: the owner has to be told why
        _say(answers, FAILED + f"{type(error).__name__}: {error}".encode())
        return 1
    ready = {"model": loaded.name, "dimensions": loaded.dimensions}
    _say(answers, READY + json.dumps(ready).encode())
    _serve(loaded, sys.stdin.buffer, answers)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except BrokenPipeError:  # the owner is gone
        os._exit(0)
