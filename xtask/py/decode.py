#!/usr/bin/env python3
"""Decode greedily with onnxruntime, and write what goes into the first run, which takes the prompt, and what comes out of it, as
OUT_DIR/{input,output}_<j>.pb.

    python decode.py MODEL.onnx SPEC.json OUT_DIR COUNT

SPEC.json is as for reference.py. Caches (inputs whose name begins with `past` and that come back as outputs) begin empty, or as zeros
where their size is fixed. Prints one JSON line: the tokens, the logit of each, and the dtype of logits. With `ort_cpu = false` in the
spec there are no tokens.
"""
import json
import sys
from pathlib import Path

import numpy as np
from reference import fill, resolve, session, write

PROMPT = [1, 17, 42, 300, 7, 99, 256, 3]


def axis_names(inputs):
    return [d for x in inputs for d in x["dims"] if isinstance(d, str) and " + " not in d]


def first_feed(inputs):
    """Inputs of the run that takes the prompt: a batch of one, nothing in the caches."""
    sizes = {n: 1 if "batch" in n else 0 if "past" in n else len(PROMPT) for n in axis_names(inputs)}
    rng = np.random.default_rng(7)
    feed = {}
    for x, shape in zip(inputs, resolve(inputs, sizes)):
        name, dtype = x["name"], np.dtype(x["dtype"])
        if name == "input_ids":
            feed[name] = np.array([PROMPT], dtype)
        elif name == "position_ids":
            feed[name] = np.broadcast_to(np.arange(len(PROMPT), dtype=dtype), shape).copy()
        elif name.startswith("past") and "cross" not in name:
            feed[name] = np.zeros(shape, dtype)
        else:
            feed[name] = fill(x["fill"], shape, dtype, rng)
    return feed


def next_feed(feed, outputs, token):
    """Inputs of the run that takes one more token."""
    out = dict(feed)
    out["input_ids"] = np.full_like(feed["input_ids"][:, :1], token)
    if "attention_mask" in feed:
        mask = feed["attention_mask"]
        out["attention_mask"] = np.concatenate([mask, np.ones_like(mask[:, :1])], 1)
    if "position_ids" in feed:
        out["position_ids"] = feed["position_ids"][..., -1:] + 1
    for name in feed:
        present = name.replace("past_key_values", "present").replace("past", "present")
        if name.startswith("past") and present in outputs:
            out[name] = outputs[present]
    return out


def decode(path, feed, count, out):
    peer = session(path, plain=True)
    names = [o.name for o in peer.get_outputs()]
    tokens, best, dtype = [], [], ""
    for _ in range(count):
        outputs = dict(zip(names, peer.run(names, feed)))
        if not tokens:
            write(out, "output", outputs.items())
        logits = outputs["logits"]
        last = logits.reshape(-1, logits.shape[-1])[-1]
        tokens.append(int(last.argmax()))
        best.append(float(last.max()))
        feed, dtype = next_feed(feed, outputs, tokens[-1]), str(logits.dtype)
    return {"tokens": tokens, "logits": best, "dtype": dtype}


def main():
    path, spec_path, out, count = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    spec = json.loads(Path(spec_path).read_text())
    feed = first_feed(spec["input"])
    out.mkdir(parents=True, exist_ok=True)
    write(out, "input", feed.items())
    runs = spec.get("ort_cpu", True)
    print(json.dumps(decode(path, feed, count, out) if runs else {"tokens": [], "logits": [], "dtype": ""}))


if __name__ == "__main__":
    main()
