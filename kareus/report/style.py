"""The look of the page: one small stylesheet, light and dark, from a phone to a wide screen.

Cool hues are computation, warm hues are communication, red is what is paid for it. Sizes and colours are
variables; the dark theme changes colours only.
"""

from __future__ import annotations

_LIGHT = """
--paper:#fcfcfb;--card:#ffffff;--ink:#191c20;--soft:#5b6470;--rule:#e4e6ea;--track:#f1f2f4;
--good:#14735a;--warn:#8a5a00;--warn-paper:#fdf5e2;
--gemm:#33558b;--attention:#6488bd;--memory:#a4bddd;--optimizer:#7fb0a8;--copy:#c3c9d2;--other:#b1b5bd;
--all-gather:#e3962f;--reduce-scatter:#bb5a20;--all-reduce:#cf7a28;--communication:#d9a860;
--exposed:#c62f3e;--idle:#c8ccd3;
"""
_DARK = """
--paper:#121417;--card:#181b1f;--ink:#e9ebee;--soft:#9aa3ae;--rule:#2a2f36;--track:#1e2227;
--good:#5cc6a3;--warn:#e6b450;--warn-paper:#2a2416;
--gemm:#7fa3dc;--attention:#5a7fb8;--memory:#3d5a86;--optimizer:#4f8980;--copy:#4a515b;--other:#5d636d;
--all-gather:#f0ab4f;--reduce-scatter:#d0713a;--all-reduce:#e08f42;--communication:#b98f52;
--exposed:#f0616d;--idle:#4b525c;
"""
_TEXT = """
*{box-sizing:border-box}
html{color-scheme:light dark;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
 font:16px/1.55 ui-sans-serif,system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
 font-variant-numeric:tabular-nums;text-rendering:optimizeLegibility}
main,header,footer{max-width:70rem;margin:0 auto;padding:0 1.5rem}
header{padding-top:3.5rem}
.brand{margin:0;font-size:.8125rem;font-weight:600;letter-spacing:.04em;color:var(--soft)}
h1{margin:.35rem 0 .25rem;font-size:clamp(1.5rem,1.1rem + 1.8vw,2.125rem);line-height:1.2;
 letter-spacing:-.02em;font-weight:650;text-wrap:balance}
.subject{margin:0;color:var(--soft);overflow-wrap:anywhere}
h2{margin:0 0 .25rem;font-size:1.25rem;line-height:1.3;letter-spacing:-.012em;font-weight:650}
section.part{margin-top:3.5rem}
.lead{margin:0 0 1.25rem;color:var(--soft);max-width:44rem}
p{max-width:44rem}
code,pre{font-family:ui-monospace,"SF Mono",SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;
 font-size:.875em}
pre{margin:0 0 .5rem;padding:.75rem 1rem;background:var(--track);border-radius:6px;overflow-x:auto}
.tag{display:inline-block;padding:0 .4em;border-radius:3px;background:var(--track);color:var(--soft);
 font-size:.6875rem;line-height:1.5;font-weight:500;letter-spacing:.01em;vertical-align:.12em;
 white-space:nowrap}
.tag.assumed{background:var(--warn-paper);color:var(--warn)}
.verdict{margin:1.75rem 0 0;font-size:clamp(1.0625rem,1rem + .4vw,1.25rem);line-height:1.5;max-width:48rem;
 text-wrap:pretty}
.verdict b{font-weight:650;white-space:nowrap}
.flag{margin:1rem 0 0;padding:.6rem .9rem;border-radius:6px;font-size:.9375rem;max-width:48rem;
 border:1px solid var(--rule)}
.flag.unverified{background:var(--warn-paper);border-color:transparent;color:var(--warn)}
.flag.verified b{color:var(--good)}
.cards{display:grid;grid-template-columns:repeat(3,1fr);margin:2rem 0 0;padding:0;background:var(--card);
 border:1px solid var(--rule);border-radius:8px;overflow:hidden}
.card{margin:0 -1px -1px 0;padding:1rem 1.25rem 1.1rem;min-width:0;border:solid var(--rule);
 border-width:0 1px 1px 0}
.card dt{font-size:.8125rem;color:var(--soft)}
.card dd{margin:0}
.card .big{font-size:1.5rem;line-height:1.35;font-weight:600;letter-spacing:-.02em}
.card .small{font-size:.8125rem;line-height:1.5;color:var(--soft);overflow-wrap:anywhere}
ul.plain{margin:1rem 0 0;padding:0 0 0 1.1rem;max-width:48rem}
ul.plain li{margin:.3rem 0}
dl.facts{display:grid;grid-template-columns:max-content 1fr;gap:.35rem 1.5rem;margin:0 0 1.25rem;
 font-size:.9375rem}
dl.facts dt{color:var(--soft)}
dl.facts dd{margin:0;overflow-wrap:anywhere}
footer{margin-top:4rem;padding-top:1rem;padding-bottom:3rem;color:var(--soft);font-size:.8125rem}
.empty{color:var(--soft)}
"""
_TABLES = """
table{width:100%;border-collapse:collapse;font-size:.9375rem;line-height:1.45}
caption{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
th,td{padding:.5rem 1rem .5rem 0;text-align:left;vertical-align:top;border-top:1px solid var(--rule)}
th:last-child,td:last-child{padding-right:0}
thead th{border-top:0;font-size:.8125rem;font-weight:500;color:var(--soft);vertical-align:bottom}
tbody th{font-weight:500}
.num{text-align:right;white-space:nowrap}
thead .num{white-space:normal}
th .glyph{margin-right:.5em;vertical-align:-.15em}
"""
_TIMELINE = """
fieldset{border:0;margin:0;padding:0;display:inline-flex;flex-wrap:wrap;align-items:center;gap:.25rem;
 font-size:.8125rem}
legend{float:left;padding:0;margin-right:.5rem;color:var(--soft)}
.controls{display:flex;flex-wrap:wrap;gap:.5rem 2rem;margin-bottom:1rem}
.controls input{position:absolute;opacity:0;width:1px;height:1px}
.controls label{padding:.2rem .6rem;border-radius:5px;cursor:pointer;color:var(--soft);
 border:1px solid var(--rule)}
.controls input:checked+label{background:var(--ink);border-color:var(--ink);color:var(--paper)}
.controls input:focus-visible+label{outline:2px solid var(--gemm);outline-offset:2px}
.rank{display:none}
.scroller{overflow-x:auto;overflow-y:hidden;padding-bottom:.5rem;border-radius:4px}
.scroller:focus-visible{outline:2px solid var(--gemm);outline-offset:3px}
.canvas{min-width:100%}
.half+.half{margin-top:1.1rem}
.half-head{position:sticky;left:0;width:max-content;max-width:100%;font-size:.875rem;margin-bottom:.3rem}
.lane{display:grid;grid-template-columns:12rem 1fr;align-items:center;margin-bottom:3px}
.lane-name{position:sticky;left:0;z-index:1;align-self:stretch;display:flex;align-items:center;
 background:var(--paper);font-size:.8125rem;line-height:1.2;color:var(--soft);padding-right:.6rem;white-space:nowrap}
.lane svg{display:block;width:100%;height:1.5rem}
.lane.wait svg{height:.5rem}
.axis{margin-bottom:.35rem}
.ticks{grid-column:2;position:relative;height:1.1rem;font-size:.75rem;color:var(--soft)}
.ticks span{position:absolute;padding-left:.3em;border-left:1px solid var(--rule);white-space:nowrap;
 line-height:1.1rem}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;margin:.9rem 0 0;padding:0;list-style:none;
 font-size:.8125rem;color:var(--soft)}
.swatch{display:inline-block;width:.7rem;height:.7rem;margin-right:.4rem;border-radius:2px;
 vertical-align:-.05rem}
"""
_PLOT = """
.plot{margin-bottom:1.5rem;font-size:.8125rem;color:var(--soft)}
.plot-body{display:grid;grid-template-columns:3.25rem 1fr;height:clamp(16rem,34vw,24rem)}
.y-labels{position:relative}
.y-labels span{position:absolute;right:.6rem;transform:translateY(-50%)}
.area{position:relative;border-left:1px solid var(--rule);border-bottom:1px solid var(--rule)}
.area>svg{position:absolute;inset:0;width:100%;height:100%}
.area>svg path{vector-effect:non-scaling-stroke;fill:none}
.area .grid{stroke:var(--rule);stroke-width:1px}
.area .front{stroke:var(--gemm);stroke-width:1.75px}
.area .bound-line{stroke:var(--soft);stroke-width:1px;stroke-dasharray:2 3}
.area .below{fill:var(--track);opacity:.75}
.dot{position:absolute;width:5px;height:5px;margin:-2.5px;border-radius:50%;background:var(--gemm)}
.mark{position:absolute;width:0;height:0}
.mark .glyph{position:absolute;left:-8px;top:-8px}
.mark-name{position:absolute;top:-1.75em;white-space:nowrap;color:var(--ink);font-weight:500;
 line-height:1.2;background:color-mix(in srgb,var(--paper) 78%,transparent);border-radius:3px;padding:0 .2em}
.to-right .mark-name{left:8px}
.to-left .mark-name{right:8px}
.under .mark-name{top:.55em}
.glyph{width:16px;height:16px;flex:none;overflow:visible}
.glyph>*{stroke:var(--paper);stroke-width:1.5px}
.glyph .hollow{fill:var(--paper);stroke:var(--ink)}
.m-chosen{fill:var(--good)}.m-stock{fill:var(--ink)}.m-serialised{fill:var(--reduce-scatter)}
.m-knee{fill:var(--gemm)}.m-least-energy{fill:var(--all-gather)}
.x-labels{position:relative;height:1.5rem;margin-left:3.25rem}
.x-labels span{position:absolute;transform:translateX(-50%);top:.3rem}
.x-title{margin-left:3.25rem;display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 1rem}
.y-title{margin-bottom:.4rem}
.share{display:grid;grid-template-columns:12rem 1fr;align-items:center;margin-bottom:.4rem;
 font-size:.875rem}
.share-bar{display:flex;height:1.5rem}
.share-bar i{display:block;height:100%}
.share-bar i+i{border-left:1px solid var(--paper)}
"""
_NARROW = """
@media (max-width:40rem){
 main,header,footer{padding-left:1rem;padding-right:1rem}
 header{padding-top:2rem}
 section.part{margin-top:2.75rem}
 .lane{display:block;margin-bottom:.4rem}
 .lane-name{display:inline-flex;padding-right:.4rem}
 .lane svg{height:1.25rem}
 .share{display:block}
 .cards{grid-template-columns:repeat(2,1fr)}
 .card{padding:.75rem .9rem .85rem}
 .card .big{font-size:1.25rem}
 .ticks span:nth-child(even){display:none}
 .mark-name{display:none}
 .x-labels span:nth-child(even){visibility:hidden}
 dl.facts{display:block}
 dl.facts dd{margin-bottom:.6rem}
 thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
 table,tbody,tr,tbody th,tbody td{display:block}
 tr{padding:.7rem 0;border-top:1px solid var(--rule)}
 tbody th,tbody td{border:0;padding:.1rem 0;text-align:left;white-space:normal}
 tbody td>.tag{justify-self:start;align-self:center}
 tbody td{display:grid;grid-template-columns:9rem 1fr;gap:.75rem}
 tbody td:empty{display:none}
 tbody td::before{content:attr(data-label);color:var(--soft);font-size:.8125rem;text-align:left;
  white-space:normal;line-height:1.65}
}
@media print{
 .controls{display:none}
 .rank{display:block!important;break-inside:avoid}
 section.part{break-inside:avoid}
}
"""
_FILLS = ("gemm", "attention", "memory", "optimizer", "copy", "other", "all-gather", "reduce-scatter",
          "all-reduce", "communication", "exposed", "idle")  # fmt: skip


THEMES = f":root{{{_LIGHT}}}\n@media (prefers-color-scheme:dark){{:root{{{_DARK}}}}}\n"


def fills() -> list[str]:
    """Return one rule for each slice class, for bars (fill) and swatches (background)."""
    rules = [f".k-{name}{{fill:var(--{name});background-color:var(--{name})}}" for name in _FILLS]
    rules.append(".k-track{fill:var(--track)}")
    # Both at once: computation with a communication stripe in it.
    stripes = "repeating-linear-gradient(135deg,var(--gemm) 0 7px,var(--all-gather) 7px 9px)"
    rules.append(f".k-both{{background:{stripes}}}")
    rules.append(".k-memset{fill:var(--copy);background-color:var(--copy)}")
    return rules


def stylesheet(num_ranks: int, zooms: tuple[int, ...]) -> str:
    """Return the page's CSS; rank and zoom switches are rules, so the page needs no script.

    Args:
        num_ranks: timelines on the page. zooms: magnifications offered, 1 first.
    """
    # The first rank shows where a browser does not know :has().
    ranks = [".rank.r0{display:block}"] if num_ranks else []
    ranks += [
        f"main:has(#rank-{i}:checked) .rank{{display:none}}"
        f"main:has(#rank-{i}:checked) .rank.r{i}{{display:block}}"
        for i in range(num_ranks)
    ]
    zoom = [f"main:has(#zoom-{z}:checked) .canvas{{width:{z * 100}%}}" for z in zooms]
    parts = [THEMES, _TEXT, _TABLES, _TIMELINE, _PLOT, *fills(), *ranks, *zoom, _NARROW]
    return "\n".join(part.strip() for part in parts)
