"""Layers of DeepSeek-V4.1 in a chain: entries, selections and candidate blocks of one serve others."""

import numpy as np
import pytest
import smla
from golden_files import worst


def test_layers_that_read_what_others_wrote_and_selected(checkpoint):
    golden, folder = checkpoint("V41_chain")
    layers = [smla.Layer.from_pretrained(folder, i) for i in range(6)]
    sources = [(x.info["entries_of"], x.info["selection_of"], x.info["candidates_of"]) for x in layers]
    assert sources == [(-1, -1, -1), (1, 1, -1), (1, 1, -1), (3, 3, 3), (3, 3, -1), (3, 5, 3)]
    with pytest.raises(smla.InvalidArgument, match="entries_of: got none, wanted the session of layer 1"):
        layers[2].session()
    with pytest.raises(smla.InvalidArgument, match="entries_of: got Layer"):
        layers[2].session(entries_of=layers[1])
    sessions = []
    for layer, (entries, _, _) in zip(layers, sources):
        other = sessions[entries] if entries not in (-1, len(sessions)) else None
        sessions.append(layer.session(page_tokens=4, max_tokens=44, entries_of=other))
    with pytest.raises(smla.InvalidArgument, match="entries_of: got a session of layer 3"):
        layers[2].session(max_tokens=44, entries_of=sessions[3])
    rows = [golden.rows("in.hidden" + each["suffix"]) for each in golden.layers]
    early = {"forced_topk": np.full((20, 6), -1, np.int32)}
    with pytest.raises(smla.InvalidArgument, match="the layer that writes the entries must run"):
        sessions[2].forward(rows[2][:20], **early)
    ys, start = [[] for _ in layers], 0
    for tokens in (20, 1, 23):
        for i, (session, (_, selection, candidates)) in enumerate(zip(sessions, sources)):
            more = {} if selection in (-1, i) else {"forced_topk": sessions[selection].topk}
            if candidates not in (-1, i):
                with pytest.raises(smla.InvalidArgument, match="step.candidates"):
                    session.forward(rows[i][start : start + tokens])
                more["candidates"] = sessions[candidates].candidates
            ys[i].append(session.forward(rows[i][start : start + tokens], **more))
        start += tokens
    for each, y in zip(golden.layers, ys):
        assert worst(np.concatenate(y), golden["ref.y" + each["suffix"]][0]) < golden.tolerance["fp32_y"]
    assert sessions[0].candidates is None and sessions[3].candidates.shape == (23, 4)
