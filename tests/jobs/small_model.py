"""A Hugging Face folder as one downloads it, small and with random weights, and chats for it."""
import json
import os
import pathlib
import subprocess

from watching_test import small_tokenizer

BIN = pathlib.Path(os.environ["TESSERA_BIN"])
TEXT_END, TURN, TURN_END = 258, 259, 260
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
          "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def write_chats(path, questions, answers):
    """Chats of one question and its answer."""
    with open(path, "w", encoding="utf-8") as file:
        for question in questions:
            file.write(json.dumps({"messages": [{"role": "user", "content": question},
                                                {"role": "assistant", "content": answers[question]}]}) + "\n")


def make_model_folder(folder, scratch, chats, model_type="qwen3"):
    """Writes `folder` by way of `scratch`, a folder that does not exist yet."""
    source = scratch / "parts"
    source.mkdir(parents=True)
    (source / "tokenizer.json").write_text(json.dumps(small_tokenizer(TEXT_END, "<|im_start|>", "<|im_end|>")))
    (source / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML, "eos_token": "<|endoftext|>"}))
    (source / "config.json").write_text(json.dumps({
        "model_type": model_type, "vocab_size": TURN_END + 1, "hidden_size": 128, "intermediate_size": 384,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "max_position_embeddings": 512, "tie_word_embeddings": True}))
    tokens = scratch / "parts.h5"
    for command in ([BIN / "tokenize", "--tokenizer", source, "--chat", "auto", "--out", tokens, chats],
                    [BIN / "train", "--model", source / "config.json", "--data", tokens, "--out", scratch / "run",
                     "--export", folder, "--seq", "32", "--micro-batch", "2", "--global-batch", "16", "--steps", "1",
                     "--lr", "0", "--save-at-end", "false"]):
        result = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise RuntimeError(f"{command[0]} ended with {result.returncode}:\n{result.stderr}")
