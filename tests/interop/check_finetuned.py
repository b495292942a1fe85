#!/usr/bin/env python3
"""jobs/finetune-chats.sh beside transformers: a model and a tokenizer that transformers saved go in, and what comes out
is loaded by AutoModelForCausalLM and AutoTokenizer, and answers greedily what `generate --chat` answers. See README.md."""
import argparse
import json
import os
import pathlib
import subprocess
import tempfile

import tokenizers
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' "
          "+ '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WORDS = "the quick brown fox jumps over a lazy dog and sleeps under an old tree".split()


def run(*command, **more):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **more)
    if result.returncode != 0:
        raise SystemExit(f"{command}: {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout


def make_model(folder, chats):
    """Saved as transformers saves: a byte-level BPE trained on the chats, and random weights."""
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = tokenizers.decoders.ByteLevel()
    trained.train_from_iterator(chats, tokenizers.trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), special_tokens=SPECIAL))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=trained, eos_token=SPECIAL[0], pad_token=SPECIAL[0])
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    torch.manual_seed(3)
    config = transformers.Qwen3Config(
        vocab_size=trained.get_vocab_size(), hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=256, tie_word_embeddings=True)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin")
    arguments = parser.parse_args()
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1",
                      PATH=f"{arguments.bin.resolve()}:{os.environ['PATH']}", EPOCHS="40")
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(prefix="tessera-interop-") as scratch:
        base, tuned, chats = [pathlib.Path(scratch) / name for name in ("base", "tuned", "chats.jsonl")]
        pairs = [(f"what follows {a} {b}", f"{b} {a} {WORDS[i]}")
                 for i, a in enumerate(WORDS) for b in WORDS]
        chats.write_text("".join(json.dumps({"messages": [{"role": "user", "content": question},
                                                          {"role": "assistant", "content": answer}]}) + "\n"
                                 for question, answer in pairs))
        make_model(base, [text for pair in pairs for text in pair])
        run("bash", ROOT / "jobs/finetune-chats.sh", base, chats, tuned, "--seq", 64, "--micro-batch", 4, "--global-batch", 8,
            "--lr", "3e-3")
        tokenizer = transformers.AutoTokenizer.from_pretrained(tuned)
        model = transformers.AutoModelForCausalLM.from_pretrained(tuned, dtype=torch.float32).eval()
        ends = model.generation_config.eos_token_id
        if ends != [tokenizer.convert_tokens_to_ids(token) for token in (SPECIAL[0], SPECIAL[2])]:
            raise SystemExit(f"transformers stops at {ends}")
        learned = 0
        for question, answer in pairs[::29]:
            asked = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True,
                                                  return_tensors="pt", return_dict=True)
            written = model.generate(**asked, do_sample=False, max_new_tokens=24)[0, asked["input_ids"].shape[1]:]
            theirs = tokenizer.decode(written, skip_special_tokens=True)
            ours = run("generate", tuned, "--chat", "auto", "--prompt", question, "--temperature", 0, "--max-tokens", 24)
            if ours.rstrip("\n") != theirs.rstrip("\n"):
                raise SystemExit(f"{question!r}: {ours!r} by generate --chat, {theirs!r} by transformers")
            learned += theirs == answer
        if learned == 0:
            raise SystemExit("nothing was learned: equal answers say little")
    print(f"transformers {transformers.__version__}: {len(pairs[::29])} answers equal, {learned} of them as in the chats")


if __name__ == "__main__":
    main()
