"""How the report of a run looks: on light and dark screens, large and small."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --text: #1c2430; --muted: #5c6675;
  --grid: #e3e7ec; --code: #eef1f5;
  --line-0: #2563c9; --line-1: #b45309; --line-2: #0f7b63; --line-3: #8b3fb0;
  --good: #0f7b4a; --busy: #2563c9; --bad: #b42318; --still: #8a5a00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12161c; --card: #1b2129; --text: #e6eaf0; --muted: #9aa6b5;
    --grid: #2d3641; --code: #242c36;
    --line-0: #6ea8ff; --line-1: #f0a35a; --line-2: #4fd1b0; --line-3: #d192f0;
    --good: #4cd08f; --busy: #6ea8ff; --bad: #ff8a80; --still: #f2c14e;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 1180px; padding: 24px 20px 48px;
  background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
h1 { font-size: 24px; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 32px 0 10px; }
header { display: flex; flex-wrap: wrap; gap: 8px 14px; align-items: center; }
header p { flex-basis: 100%; margin: 0; color: var(--muted);
  overflow-wrap: anywhere; }
.status { font-weight: 600; font-size: 14px; padding: 2px 12px;
  border: 1.5px solid currentColor; border-radius: 99px; }
.finished { color: var(--good); } .running { color: var(--busy); }
.diverged, .failed { color: var(--bad); } .stopped { color: var(--still); }
.numbers { display: grid; gap: 12px; margin: 18px 0 0; padding: 0;
  grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); }
.numbers > div, figure, .card {
  background: var(--card); border: 1px solid var(--grid); border-radius: 10px;
}
.numbers > div { padding: 10px 14px; }
.numbers dt { color: var(--muted); font-size: 13px; }
.numbers dd { margin: 0; font-size: 22px; line-height: 1.3;
  font-variant-numeric: tabular-nums; }
.numbers small { display: block; font-size: 13px; color: var(--muted); }
.charts { display: grid; gap: 12px;
  grid-template-columns: repeat(auto-fill, minmax(min(340px, 100%), 1fr)); }
figure { margin: 0; padding: 12px 12px 6px; min-width: 0; }
figcaption { display: flex; justify-content: space-between; gap: 12px;
  font-weight: 600; padding: 0 4px 4px; overflow-wrap: anywhere; }
figcaption span { font-weight: 400; color: var(--muted); white-space: nowrap;
  font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font-size: 12.5px; font-family: inherit; fill: var(--muted);
  font-variant-numeric: tabular-nums; }
.unit { margin: 0; padding: 0 4px; min-height: 20px; font-size: 13px;
  line-height: 20px; color: var(--muted);
  display: flex; flex-wrap: wrap; gap: 0 16px; }
.unit span { color: var(--text); white-space: nowrap; }
.unit span::before { content: ""; display: inline-block; width: 16px;
  height: 3px; margin-right: 6px; vertical-align: middle;
  background: var(--mark); }
svg.spark { width: 110px; height: 24px; }
.narrow { display: none; }
@media (max-width: 680px) {
  body { padding: 16px 12px 40px; }
  .wide { display: none; } .narrow { display: block; }
  .numbers { grid-template-columns: 1fr 1fr; gap: 8px; }
  .numbers dd { font-size: 19px; }
}
.card { padding: 4px 16px; margin-top: 12px; }
details > summary { cursor: pointer; padding: 8px 0; font-weight: 600; }
.scroll { overflow-x: auto; padding-bottom: 10px; }
table { border-collapse: collapse; font-size: 14px; width: 100%; }
th { text-align: left; font-weight: 600; color: var(--muted); }
th, td { padding: 3px 18px 3px 0; border-top: 1px solid var(--grid);
  vertical-align: middle; }
td.number, th.number { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
td:first-child { width: 1%; padding-right: 32px; }
td.value { overflow-wrap: anywhere; }
pre { background: var(--code); border-radius: 8px; padding: 10px 14px;
  margin: 4px 0 12px; overflow-x: auto; font-size: 13.5px; }
.empty { color: var(--muted); padding: 12px 4px; margin: 0; }
footer { color: var(--muted); font-size: 13px; margin-top: 32px; }
"""
