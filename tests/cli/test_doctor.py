"""`hypic doctor` as a person runs it; what it says is held against what loading then does."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from hypic_sdk.cli.app import app, main
from hypic_sdk.config import (
    MIB,
    MODES,
    EngineConfig,
    ReuseConfig,
    ReuseMode,
    SeamRule,
    StoreConfig,
)
from hypic_sdk.demo import reader_path
from hypic_sdk.doctor.examine import examine
from hypic_sdk.doctor.report import LawCheck
from hypic_sdk.engine.opening import load_engine
from hypic_sdk.errors import ConfigError, HypicError, ModelFileError, NumericsError
from hypic_sdk.offline import LocalHypic
from hypic_sdk.store.advice import OPTIONS
from tests.source_tree import REPOSITORY


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["doctor", *words], catch_exceptions=False,
                                env={"COLUMNS": "160"})  # fmt: skip
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the packaged model, to be spoiled."""
    shutil.copytree(reader_path(), tmp_path / "model")
    return tmp_path / "model"


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_people_are_told_all_of_it() -> None:
    output = run()
    for words in (
        "qwen3_5_text",
        "gated_delta_rule, dense transitions",
        "8: 6 linear (6 state heads of 64 x 64), 2 attention (6 query heads on 2 of 64)",
        "17,256,520",
        "BF16 32.9 MiB in 3 file(s)",
        "4,096 tokens",
        "live_attention",
        "kernels run on cuda, not on cpu",
        "law 3",
        "tool calls as xml",
        "system, user, tool",
        "this model can be served here",
    ):
        assert words in output, words


def test_an_op_is_said_to_have_no_kernel_where_it_has_none() -> None:
    told = {op["op"]: op["reason"] for op in json.loads(run("--json"))["ops"]}
    assert told["linear"] == "kernels run on cuda, not on cpu"
    assert {op for op, reason in told.items() if "no kernel" in reason} == {"sample", "logprobs"}


def test_the_page_about_models_shows_what_is_told() -> None:
    """All of it but numbers of one machine: free memory, errors."""
    page = (REPOSITORY / "docs" / "models.md").read_text(encoding="utf-8")
    shown = page.split("```\nmodel  ")[1].split("```")[0]
    told = run()
    assert first_words("model  " + shown) == first_words(told)
    assert "this model can be served here" in shown


def first_words(output: str) -> list[str]:
    """Of each row; a row that was folded goes on with white space."""
    return [line.split("  ")[0] for line in output.splitlines() if line[:1].strip()]


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_segments_are_told_of_where_the_mode_keeps_any(mode: ReuseMode) -> None:
    """Held against what an engine keeps of a text that was computed."""
    output, text = run("--mode", mode.name), "A town on a river. " * 40
    assert ("1,024 tokens" in output) == mode.segments
    assert ("none is kept in this mode" in output) == (not mode.segments)
    config = EngineConfig(device="cpu", reuse=ReuseConfig(mode=mode))
    with LocalHypic(config=config) as local:
        document = local.segments.create(text)
        messages = [{"role": "user", "content": "Where?"}]
        local.chat.completions.create(messages=messages, documents=[document], max_tokens=1)
        state = local.segments.lookup([document])[document.id]
    assert (state.state == "warm") == mode.segments


def test_what_does_not_fit_is_told_and_loading_refuses_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--cache-mib", str(2**40)]
    output = run(*words)
    assert "are free here now" in output
    assert "this model can be served here once there is room for it" in output
    monkeypatch.setattr("sys.argv", ["hypic", "generate", "-q", "Where?", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"cpu does not give {2**60} bytes" in capsys.readouterr().err.replace("\n", " ")


def test_json_holds_the_same_numbers() -> None:
    told = json.loads(run("--json"))
    assert told["identity"]["num_parameters"] == 17_256_520
    assert told["identity"]["stored_bytes"] == {"BF16": 2 * 17_256_520}
    assert told["memory"]["weights_bytes"] == 4 * 17_256_520
    assert [law["holds"] for law in told["laws"]] == [True] * 4
    assert told["template"]["segments_in"] == ["system", "user", "tool"]
    assert told["sampling"]["max_tokens"] == 64
    assert told["notes"] == []


WISHES = {"do_sample": True, "temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1}


def test_what_a_caller_gets_who_says_nothing(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({**WISHES, "max_length": 99}))
    told = json.loads(run("--model", str(folder), "--json"))
    assert told["sampling"] == {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_tokens": 256,
        "min_tokens": 0,
    }
    assert told["notes"] == ["generation_config.json asks for max_length, which is not done"]
    output = run("--model", str(folder))
    assert "temperature 0.6, top_k 20, repetition_penalty 1.1, max_tokens 256" in output


@pytest.mark.parametrize(
    "wishes",
    ["[", "3", '{"do_sample": 3}', '{"do_sample": true, "top_p": 7}', '{"max_new_tokens": 0}',
     '{"min_new_tokens": 300}', '{"repetition_penalty": "much"}'],
)  # fmt: skip
def test_wishes_that_loading_refuses_are_refused_here_for_the_same_reason(
    folder: Path, wishes: str
) -> None:
    (folder / "generation_config.json").write_text(wishes)
    with pytest.raises(ModelFileError) as loading:
        LocalHypic(folder, config=EngineConfig(device="cpu"))
    with pytest.raises(ModelFileError) as examining:
        examine(folder, EngineConfig(device="cpu"))
    assert examining.value.message == loading.value.message


@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(device="cpu"),
        EngineConfig(
            device="cpu",
            dtype="bfloat16",
            reuse=ReuseConfig(seam=SeamRule(5, 9), min_segment_tokens=1),
            store=StoreConfig(64 << 20, expected_segment_tokens=99, pair="float32"),
        ),
    ],
    ids=["defaults", "others"],
)
def test_what_is_foretold_is_what_loading_does(config: EngineConfig) -> None:
    report = examine(reader_path(), config)
    engine = load_engine(reader_path(), config)
    layout, sizes = engine.describe().store_layout, engine._store.sizes
    memory, placement = report.memory, report.placement
    assert memory.state_row_bytes == layout.state_row_bytes
    assert memory.transition_row_bytes == layout.transition_row_bytes
    assert memory.kv_token_bytes == layout.kv_slot_bytes
    assert (memory.num_state_rows, memory.num_kv_tokens) == (
        sizes.num_state_rows,
        sizes.num_kv_slots,
    )
    for cost in memory.segments:
        assert cost.num_bytes == layout.segment_bytes(cost.interior_tokens)
        assert cost.fits * cost.num_bytes <= config.store.budget_bytes
    settings = engine.describe().settings
    assert placement.dtype == str(settings.dtype).removeprefix("torch.")
    assert placement.determinism == settings.determinism.value
    shortest, conv_width = memory.min_segment_tokens, settings.conv_width
    assert config.reuse.keeps(shortest, conv_width)
    assert shortest == 1 or not config.reuse.keeps(shortest - 1, conv_width)


def test_no_weight_is_read(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Bytes of the tensors may be anything; only headers are looked at."""
    for shard in folder.glob("*.safetensors"):
        content = bytearray(shard.read_bytes())
        start = 8 + int.from_bytes(content[:8], "little")
        content[start:] = b"\xff" * (len(content) - start)
        shard.write_bytes(content)
    told = json.loads(run("--model", str(folder), "--json"))
    assert told["identity"]["num_parameters"] == 17_256_520


def drop_tensors(folder: Path) -> None:
    shard = folder / "model-00002-of-00003.safetensors"
    tensors = load_file(shard)
    for name in list(tensors)[:2]:
        del tensors[name]
    save_file(tensors, shard)


def cut_shard(folder: Path) -> None:
    shard = folder / "model-00001-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def broken_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% for %}")


def doubling_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}" * 2)


def rope_scaling(folder: Path) -> None:
    change_config(folder, rope_scaling={"type": "dynamic", "factor": 2.0})


def smaller_vocabulary(folder: Path) -> None:
    """Of the tokenizer's 8,192 ids the model has rows for 8,000."""
    change_config(folder, vocab_size=8000, eos_token_id=5)
    (folder / "generation_config.json").write_text("{}")
    for shard in folder.glob("*.safetensors"):
        tensors = load_file(shard)
        name = "model.embed_tokens.weight"
        if name in tensors:
            tensors[name] = tensors[name][:8000].contiguous()
            save_file(tensors, shard)


SPOILED: dict[str, tuple[Callable[[Path], None], str]] = {
    "tensors missing": (drop_tensors, "index.json names tensors that no shard holds"),
    "shard cut": (cut_shard, "torn"),
    "tokenizer missing": (no_tokenizer, "tokenizer.json"),
    "template broken": (broken_template, "chat template, line 1"),
    "template doubles": (doubling_template, "2 times"),
    "rope scaling": (rope_scaling, "rope_scaling"),
    "tokenizer of another model": (smaller_vocabulary, "do not belong together"),
}


@pytest.mark.parametrize(("spoil", "words"), SPOILED.values(), ids=SPOILED)
def test_what_can_not_be_served_is_a_typed_error_with_a_status(
    spoil: Callable[[Path], None],
    words: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spoil(folder)
    with pytest.raises(ModelFileError, match=words):
        run("--model", str(folder))
    monkeypatch.setattr("sys.argv", ["hypic", "doctor", "--model", str(folder)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "model_file_error" in capsys.readouterr().err


@pytest.mark.parametrize("error", [2e-5, float("nan"), float("inf")])
def test_a_law_that_does_not_hold_here_is_an_error_with_a_status(
    error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = LawCheck("law 3", error, 1e-5)
    monkeypatch.setattr("hypic_sdk.doctor.examine.check_laws", lambda *_, **__: (broken,))
    with pytest.raises(NumericsError, match=f"law 3: {error:.1e}, bound 1.0e-05"):
        examine(reader_path(), EngineConfig(device="cpu"))
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.output)["error"]["code"] == "numerics_error"


def test_an_error_is_json_too_where_json_is_asked(folder: Path) -> None:
    cut_shard(folder)
    result = CliRunner().invoke(app, ["doctor", "--model", str(folder), "--json"])
    assert result.exit_code == 1
    assert json.loads(result.output)["error"]["code"] == "model_file_error"


def test_pairs_in_8_bits_are_told_and_more_segments_fit() -> None:
    wide, small = (json.loads(run("--json", "--pair", pair)) for pair in ("float16", "int8"))
    assert (wide["placement"]["pair"], small["placement"]["pair"]) == ("float16", "int8")
    for ours, theirs in zip(small["memory"]["segments"], wide["memory"]["segments"], strict=True):
        assert ours["num_bytes"] < theirs["num_bytes"]
        assert ours["fits"] >= theirs["fits"]
    assert any("pair kept in int8" in law["law"] for law in small["laws"])
    words = run("--pair", "int8")
    assert "pairs in int8" in words
    assert "309 pairs of" in words
    with pytest.raises(ConfigError, match="pair is one of float16, float32, float64, int8"):
        run("--pair", "fp8")


WORDS = (
    *("--cache-mib", "64", "--segment-tokens", "512", "--segments-per-request", "9"),
    *("--min-segment-tokens", "70", "--seam", "4", "--pair", "float32", "--mode", "transition"),
)


def config_of(command: str, *words: str) -> EngineConfig:
    """What a command makes of its words."""
    with pytest.MonkeyPatch.context() as patch:
        found: list[EngineConfig] = []
        patch.setattr(
            f"hypic_sdk.cli.{command}.run_{command}",
            lambda *_, config, **__: found.append(config),
        )
        result = CliRunner().invoke(app, [command, *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    [config] = found
    return config


def test_the_plan_is_that_of_the_server_which_the_same_words_start() -> None:
    for words in (WORDS, *(WORDS[i : i + 2] for i in range(0, len(WORDS), 2)), ()):
        server, doctor = (config_of(command, *words) for command in ("serve", "doctor"))
        assert (doctor.store, doctor.reuse) == (server.store, server.reuse)
    assert config_of("doctor", *WORDS[2:6]).store == StoreConfig(
        expected_segment_tokens=512, segments_per_request=9
    )


def test_options_that_errors_name_set_the_settings_that_they_name_beside_them() -> None:
    for command in ("serve", "doctor"):
        for field, option in OPTIONS.items():
            unit = MIB if field == "budget_bytes" else 1
            assert getattr(config_of(command, option, "77").store, field) == 77 * unit


def test_a_cache_split_for_longer_segments_holds_fewer_states_and_more_keys() -> None:
    short, long = (
        json.loads(run("--json", "--segment-tokens", length))["memory"] for length in ("64", "2048")
    )
    assert short["num_state_rows"] > long["num_state_rows"]
    assert short["num_kv_tokens"] < long["num_kv_tokens"]


@pytest.mark.parametrize(
    "option",
    ["--cache-mib", "--min-segment-tokens", "--segment-tokens", "--segments-per-request"],
)
def test_the_largest_and_least_numbers_that_are_taken_are_told_of_or_refused(option: str) -> None:
    largest = 2**40 if option == "--cache-mib" else 2**24
    for number in (1, largest):
        with contextlib.suppress(ConfigError):
            run(option, str(number))


def test_a_budget_that_holds_no_segment_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError) as caught:
        run("--cache-mib", "1")
    assert caught.value.details["budget_bytes"] == 1 << 20
    assert caught.value.details["least_bytes"] > 1 << 20


def test_a_folder_without_a_template_takes_plain_prompts(folder: Path) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    told = json.loads(run("--model", str(folder), "--json"))
    assert told["template"] is None
    assert "no chat template" in told["notes"][0]


def test_a_template_that_lacks_things_is_told_so(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}"
        "{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    )
    template = examine(folder, EngineConfig(device="cpu")).template
    assert template is not None
    assert template.roles == ("system", "developer")
    assert template.segments_in == ("system", "user")
    assert not any((template.thinking_switch, template.tools, template.shows_reasoning))
    assert template.call_format is None
    assert template.ends_reply_with is None


def test_an_end_token_that_the_template_does_not_write_is_noted(folder: Path) -> None:
    change_config(folder, eos_token_id=5)
    (folder / "generation_config.json").write_text("{}")
    [note] = examine(folder, EngineConfig(device="cpu")).notes
    assert "ends a reply with '<|im_end|>'" in note


def test_a_hub_id_that_is_not_there_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HypicError, match="HF_HUB_OFFLINE") as caught:
        run("--model", "team/tiny")
    assert caught.value.details["reason"] == "offline"
