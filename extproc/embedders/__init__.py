"""Texts to vectors, by which a semantic cache finds candidates. May do IO; knows nothing of caches.

`protocol` says what an embedder is; `onnx` runs a model on this machine, in a process of its own;
`openai_endpoint` asks a server. Must import without onnxruntime and tokenizers, and quickly: the
worker process imports this too.
"""

from extproc.embedders.protocol import Embedder, EmbedderUnavailable, Vector

__all__ = ["Embedder", "EmbedderUnavailable", "Vector"]
