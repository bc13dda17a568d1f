"""Writes vocabularies.json: small vocabularies that the public libraries have learned, and how these cut texts.

pip install sentencepiece tokenizers; python tests/models/record_vocabularies.py
"""

import glob
import json
import random
import sysconfig
import tempfile
from pathlib import Path

import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.pre_tokenizers import Split

MODERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|NUMBERS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
TEXTS = [
    "Hello world", "  two  spaces ", "naïve café 日本語 🎉", "a\n\n b\t c   ", "it's they'll WE'RE 12345 x1y2", "", " ",
    "foo_bar(baz)[0] += 'x'", "été\u00a0x \u3000y ١٢٣ ²³ Ⅷ", "\x1c\x1dq", "<s></s><|endoftext|>", "'S 's",
    "def f(self):",
    "a xylophone, zebra zebras", "IT'S It'Ll 'ſ x\r\n\r\ny  \n z !!\n\n", "1234567 ½ 12a", "\t\tif x:\n",
]  # fmt: skip


def main():
    rng = random.Random(0)
    files = sorted(glob.glob(sysconfig.get_path("stdlib") + "/*.py"))[:20]
    corpus = "\n".join(Path(f).read_text(encoding="utf-8", errors="ignore") for f in files)
    texts = TEXTS + [corpus[i : i + rng.randrange(1, 40)] for i in (rng.randrange(len(corpus)) for _ in range(40))]
    texts += ["".join(rng.choice("ab 'st\n\t1é日🎉_-.\u00a0") for _ in range(rng.randrange(12))) for _ in range(40)]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "text").write_text(corpus)
        sentencepiece.SentencePieceTrainer.train(
            input=f"{folder}/text", model_prefix=f"{folder}/m", vocab_size=420, model_type="bpe", byte_fallback=True,
            character_coverage=0.99, normalization_rule_name="identity", remove_extra_whitespaces=False,
        )  # fmt: skip
        s = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/m.model")
    every = range(s.vocab_size())
    kinds = [2 if s.is_unknown(i) else 3 if s.is_control(i) else 6 if s.is_byte(i) else 1 for i in every]
    pieces = {"model": "llama", "tokens": [s.id_to_piece(i) for i in every], "token_type": kinds}
    pieces |= {"scores": [s.get_score(i) for i in every], "bos_token_id": s.bos_id(), "eos_token_id": s.eos_id()}
    found = {"llama": {"metadata": pieces, "texts": [[x, s.encode(x), s.decode(s.encode(x))] for x in texts]}}
    for rules in (None, "llama-bpe", "qwen2"):
        found[rules or "gpt-2"] = learned_pairs(corpus, texts, rules)
    (Path(__file__).parent / "vocabularies.json").write_text(json.dumps(found, separators=(",", ":")) + "\n")


def learned_pairs(corpus, texts, rules):
    """Byte pairs, of words that are cut by GPT-2's rules or those of a later model."""
    t = Tokenizer(models.BPE(ignore_merges=rules == "llama-bpe"))
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    if rules is not None:
        cut = Split(Regex(MODERN.replace("NUMBERS", r"\p{N}{1,3}" if rules == "llama-bpe" else r"\p{N}")), "isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        t.pre_tokenizer = pre_tokenizers.Sequence([cut, byte_level])
    letters, end = pre_tokenizers.ByteLevel.alphabet(), "<|endoftext|>"
    t.train_from_iterator(
        [corpus], trainers.BpeTrainer(vocab_size=420, initial_alphabet=sorted(letters), special_tokens=[end])
    )
    learned = json.loads(t.to_str())["model"]
    tokens = sorted(learned["vocab"], key=learned["vocab"].get)
    merges = [m if isinstance(m, str) else " ".join(m) for m in learned["merges"]]
    pairs = {"model": "gpt2", "tokens": tokens, "token_type": [3] + [1] * (len(tokens) - 1), "merges": merges}
    pairs |= {"pre": rules or "gpt-2", "eos_token_id": 0}
    # beside the pairs some words that no pairs make, for rules that take whole words first
    if rules == "llama-bpe":
        words = ["\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}xylophone", "zebra"]
        pairs["tokens"] = tokens = [*tokens, *words]
        pairs["token_type"] = [3] + [1] * (len(tokens) - 1)
        made = Tokenizer.from_str(t.to_str())
        state = json.loads(made.to_str())
        state["model"]["vocab"] |= {word: len(tokens) - 2 + i for i, word in enumerate(words)}
        t = Tokenizer.from_str(json.dumps(state))
    texts = [x for x in texts if end not in x]
    return {"metadata": pairs, "texts": [[x, t.encode(x).ids, t.decode(t.encode(x).ids)] for x in texts]}


if __name__ == "__main__":
    main()
