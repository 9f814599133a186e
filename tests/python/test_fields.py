"""The tables of fields that the library gives: against the headers, which say the same by hand."""

import ctypes as c
import re
from pathlib import Path

import numpy as np
import pytest
import smla
from smla import _abi
from smla._abi import Dtype, FieldKind, Stage
from smla._fields import fields_of
from smla._library import check, lib
from smla._run import CALLS

ROOT = Path(__file__).resolve().parents[2]
STAGES = [stage for stage in Stage if stage is not Stage.COUNT]
HEADERS = "".join(
    (ROOT / f"include/smla/stages_{part}.h").read_text() for part in "attend cache index linear".split()
)
NESTED = {  # of a struct within arguments, what the tables call its members
    "AttendArgs": {"primary.": "AttendSource", "extra.": "AttendSource"},
    "ScoreSelectArgs": {"score.": "ScoreArgs", "select.": "SelectArgs"},
}
# Fields that score_select rejects.
ABSENT = {"score.logits", "select.scores", "select.request_of_token"}
# The table allows it, a rule between fields does not.
REFUSED = {"q_out": {Dtype.F16}}
KINDS = "|".join(kind.name.lower() for kind in Dtype)
TYPES = re.compile(rf"\][ ]((?:(?:, | or | \()?(?:{KINDS})\)?)+)")


def members(struct):
    """{member: its comment} of a struct of the headers: the tensors and caches."""
    name = "smla" + re.sub(r"(?=[A-Z])", "_", struct).lower()
    body = re.search(rf"typedef struct {name} {{(.*?)}} {name};", HEADERS, re.DOTALL)[1]
    found, comment = {}, ""
    for text, kind, member in re.findall(r"/\*(.*?)\*/|(\w+\*?) (\w+);", body, re.DOTALL):
        if text:
            comment = re.sub(r"\s+\* |\s+", " ", text)
        elif kind in ("smla_tensor", "smla_cache"):
            found[member] = comment  # one comment may stand above several members
        else:
            comment = ""
    return found


def described(stage):
    """{field: comment} of all tensors and caches of a stage's arguments."""
    struct = CALLS[stage.name.lower()].struct.kind.__name__
    inner = NESTED.get(struct, {})
    nested = {prefix + name: text for prefix, kind in inner.items() for name, text in members(kind).items()}
    return members(struct) | nested


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name.lower())
def test_tables_say_what_the_headers_say(stage):
    comments = described(stage)
    fields = {field.name: field for field in fields_of(stage) if field.kind is not FieldKind.NUMBER}
    assert set(fields) == set(comments)
    for name, field in fields.items():
        text = comments[name]
        if field.given_with is not None:
            assert "only" in text, name
        elif name not in ABSENT:
            no_source = field.kind is FieldKind.CACHE and "NONE" in text
            assert field.is_optional == ("optional" in text.lower() or no_source), name
        if field.kind is FieldKind.CACHE:
            continue
        shape = re.search(r"\[(.*?)\]", text)[1].split(",")
        if "*" in field.shape:
            assert len(shape) == len(field.shape), name
        else:
            assert (
                list(field.shape) == [{"Kx": "K"}.get(word, word) for word in shape] or name == "extra.rows"
            )
        if types := TYPES.search(text):
            wanted = {Dtype[word.upper()] for word in re.findall(r"\w+", types[1]) if word != "or"}
            assert {kind for kind in Dtype if field.may_be(kind)} - REFUSED.get(name, set()) == wanted, name


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name.lower())
def test_fields_lie_where_the_struct_has_them(stage):
    places = CALLS[stage.name.lower()].struct.places
    for i, field in enumerate(fields_of(stage)):
        info = _abi.StageField(struct_size=c.sizeof(_abi.StageField))
        check(lib.smla_stage_get_field(stage, i, c.byref(info)))
        kind, offset = places[field.name]
        assert offset == info.offset
        assert kind is {0: _abi.Tensor, 1: _abi.Cache, 2: c.c_void_p}[info.kind]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name.lower())
def test_functions_have_every_field(stage):
    """A field that the table gains fails here until Python's function has a parameter for it."""
    call = CALLS[stage.name.lower()]
    inside = {"score_select": {"logits", "scores", "ids"}}.get(call.name, set())
    wanted = {name.removesuffix("_device") for name in call.fields} - inside
    assert wanted <= set(call.parameters)
    assert any(field.is_written for field in call.fields.values())


def test_what_is_no_field_is_refused():
    count, field = c.c_int32(), _abi.StageField(struct_size=c.sizeof(_abi.StageField))
    for stage in (-1, Stage.COUNT):
        with pytest.raises(smla.InvalidArgument, match="stage: got"):
            check(lib.smla_stage_field_count(stage, c.byref(count)))
        with pytest.raises(smla.InvalidArgument, match="stage: got"):
            check(lib.smla_stage_get_field(stage, 0, c.byref(field)))
    with pytest.raises(smla.InvalidArgument, match="count: got null"):
        check(lib.smla_stage_field_count(0, None))
    check(lib.smla_stage_field_count(Stage.NORM, c.byref(count)))
    for index in (-1, count.value):
        with pytest.raises(smla.InvalidArgument, match="index: got .*the fields of norm"):
            check(lib.smla_stage_get_field(Stage.NORM, index, c.byref(field)))
    with pytest.raises(smla.InvalidArgument, match="field: got null"):
        check(lib.smla_stage_get_field(Stage.NORM, 0, None))
    field.struct_size = 8
    with pytest.raises(smla.InvalidArgument, match="field.struct_size: got 8"):
        check(lib.smla_stage_get_field(Stage.NORM, 0, c.byref(field)))
    assert field.name is None


def test_flags_may_be_anything_that_is_true_or_false():
    x, positions, frequencies = np.ones((1, 1, 4), np.float32), np.ones(1, np.int32), np.ones(2)
    turned = [smla.rope(x, positions, frequencies, inverse=flag) for flag in (True, np.True_, 1)]
    assert all((each == turned[0]).all() for each in turned)
    assert not (smla.rope(x, positions, frequencies, inverse=np.False_) == turned[0]).all()
