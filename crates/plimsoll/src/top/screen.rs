//! The tables of `plimsoll top`, in a terminal or as text.
//!
//! All tables are one page of lines, which the terminal scrolls. Where the terminal is narrow, a table leaves out its least
//! important columns, then cuts long texts at their ends.

use super::rates::{Rates, View};
use crate::promise::{brokenness, deadline, kept, promise, shares, signed};
use crate::table::{bytes, columns, micros, table};
use plimsoll_node::http::api::{Latency, LayerStatus, PoolStatus, TenantStatus, VolumeStatus};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use std::cmp::Reverse;

/// A table's columns, each with its importance: the larger, the earlier it is left out. 0: never.
type Head = &'static [(&'static str, u8)];

/// Shares of the reads with a deadline in the last minute.
const READS: &str = "KEPT/MISSED/WAITED/BUSY";

const TENANTS: Head = &[
    ("TENANT", 0),
    ("KEPT", 0),
    (READS, 1),
    ("IOPS", 2),
    ("P99", 2),
    ("PROMISE", 3),
    ("BUSY/S", 4),
    ("RATE", 5),
    ("P50", 6),
    ("P99.9", 7),
];
const VOLUMES: Head = &[
    ("VOLUME", 0),
    ("STATE", 1),
    ("DEADLINE", 2),
    (READS, 1),
    ("IOPS", 2),
    ("P99", 2),
    ("BUSY/S", 4),
    ("FAILED", 3),
    ("INFLIGHT", 4),
    ("OLDEST", 3),
    ("RATE", 5),
    ("SIZE", 6),
    ("CLIENTS", 6),
];
const POOLS: Head = &[
    ("POOL", 0),
    ("STATE", 1),
    (READS, 1),
    ("ACTUAL-FORECAST P50", 2),
    ("P99", 2),
    ("INFLIGHT", 3),
    ("OLDEST", 3),
    ("FREE", 4),
];
const LAYERS: Head = &[
    ("POOL", 0),
    ("LAYER", 0),
    ("ENTERED", 3),
    ("WAITED", 1),
    ("WAIT P50", 2),
    ("WAIT P99", 1),
    ("OWN I/O", 4),
    ("REVOKED", 5),
];
const STATES: Head = &[("POOL", 0), ("LAYER", 0), ("STATE", 0)];

/// Order of tenants and volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sort {
    /// Broken promises first, then the larger share of missed deadlines.
    #[default]
    Broken,
    /// By name.
    Name,
    /// The busiest first.
    Iops,
    /// Most refused first.
    Busy,
}

impl Sort {
    /// The next one.
    pub fn next(self) -> Sort {
        match self {
            Sort::Broken => Sort::Name,
            Sort::Name => Sort::Iops,
            Sort::Iops => Sort::Busy,
            Sort::Busy => Sort::Broken,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Sort::Broken => "broken first",
            Sort::Name => "name",
            Sort::Iops => "IOPS",
            Sort::Busy => "busy",
        }
    }

    /// Both in this order. Equal ones stay in the order of their names.
    fn sorted<'a, T>(
        self,
        rates: &'a [Rates],
        all: &'a [T],
        broken: impl Fn(&T) -> (bool, u64),
    ) -> Vec<(&'a Rates, &'a T)> {
        let mut both: Vec<_> = rates.iter().zip(all).collect();
        match self {
            Sort::Broken => both.sort_by_key(|(_, one)| Reverse(broken(one))),
            Sort::Name => {}
            Sort::Iops => both.sort_by(|a, b| b.0.iops.total_cmp(&a.0.iops)),
            Sort::Busy => both.sort_by(|a, b| b.0.busy_per_s.total_cmp(&a.0.busy_per_s)),
        }
        both
    }
}

/// The visible part of the page.
#[derive(Default)]
pub struct Scroll {
    /// The first line that is seen.
    pub top: usize,
    /// Lines that are seen at once, as of the last draw.
    pub height: usize,
    /// First lines of the tables, as of the last draw.
    pub tables: Vec<usize>,
}

impl Scroll {
    /// Goes to the next table below, from the last one to the top.
    pub fn next_table(&mut self) {
        self.top = self.tables.iter().copied().find(|t| *t > self.top).unwrap_or(0);
    }
}

/// All tables as text.
pub fn text(view: &View) -> String {
    let plain = |head: Head, rows: Vec<Vec<String>>| table(&head.iter().map(|h| h.0).collect::<Vec<_>>(), &rows);
    let tables = tables(view, Sort::Broken).map(|(_, head, rows)| plain(head, rows));
    tables.join("\n")
}

type Titled = (&'static str, Head, Vec<Vec<String>>);

fn tables(view: &View, sort: Sort) -> [Titled; 5] {
    [
        ("Tenants", TENANTS, tenants(view, sort)),
        ("Volumes", VOLUMES, volumes(view, sort)),
        ("Pools", POOLS, view.status.pools.iter().map(pool).collect()),
        ("Layers, since the start", LAYERS, layers(view)),
        ("State of layers", STATES, states(view)),
    ]
}

fn tenants(view: &View, sort: Sort) -> Vec<Vec<String>> {
    let row = |(r, t): (&Rates, &TenantStatus)| {
        let [p50, p99, p999] = latency(&r.last_second);
        let [iops, rate] = speed(r);
        let reads = shares(&t.traffic.promised.last_minute);
        vec![t.name.clone(), kept(t), reads, iops, p99, promise(t), format!("{:.0}", r.busy_per_s), rate, p50, p999]
    };
    let broken = |t: &TenantStatus| brokenness(t.kept, &t.traffic.promised.last_minute);
    sort.sorted(&view.tenants, &view.status.tenants, broken).into_iter().map(row).collect()
}

fn volumes(view: &View, sort: Sort) -> Vec<Vec<String>> {
    let row = |(r, v): (&Rates, &VolumeStatus)| {
        let [iops, rate] = speed(r);
        vec![
            v.name.clone(),
            v.state.clone(),
            deadline(v.promise.as_ref()),
            shares(&v.traffic.promised.last_minute),
            iops,
            latency(&r.last_second)[1].clone(),
            format!("{:.0}", r.busy_per_s),
            v.traffic.failed.to_string(),
            v.traffic.inside.to_string(),
            v.traffic.oldest.as_ref().map_or("-".into(), |o| format!("{} {}", micros(o.age_us), o.at)),
            rate,
            bytes(v.size_bytes),
            v.connections.to_string(),
        ]
    };
    let broken = |v: &VolumeStatus| brokenness(None, &v.traffic.promised.last_minute);
    sort.sorted(&view.volumes, &view.status.volumes, broken).into_iter().map(row).collect()
}

fn pool(p: &PoolStatus) -> Vec<String> {
    let f = &p.promises.forecast;
    let deviation = |us| if f.samples == 0 { "-".into() } else { signed(us) };
    vec![
        p.name.clone(),
        p.state.clone(),
        shares(&p.promises.reads.last_minute),
        deviation(f.p50_us),
        deviation(f.p99_us),
        p.inside.to_string(),
        p.oldest.as_ref().map_or("-".into(), |o| format!("{} {}", micros(o.age_us), o.at)),
        p.free_bytes.map_or("-".into(), bytes),
    ]
}

fn layers(view: &View) -> Vec<Vec<String>> {
    let row = |(p, l): (&PoolStatus, &LayerStatus)| {
        let all = (l.waited + l.passed_at_once).max(1);
        let waited = format!("{:.1} %", l.waited as f64 * 100.0 / all as f64);
        let waits =
            if l.waited == 0 { ["-".into(), "-".into()] } else { [micros(l.wait_p50_us), micros(l.wait_p99_us)] };
        let own = format!("{} ({})", l.own_ios, bytes(l.own_bytes));
        let [p50, p99] = waits;
        vec![p.name.clone(), l.name.clone(), l.entered.to_string(), waited, p50, p99, own, l.revoked.to_string()]
    };
    let all = view.status.pools.iter().flat_map(|p| p.layers.iter().map(move |l| (p, l)));
    all.map(row).collect()
}

fn states(view: &View) -> Vec<Vec<String>> {
    let of = |p: &PoolStatus| {
        let front = format!("{} waiting for an overlapping request", p.overlap_waiting);
        let parts = p.parts.iter().map(|part| match &part.problem {
            Some(problem) => (part.name.clone(), format!("{}: {problem}", part.headline)),
            None => (part.name.clone(), part.headline.clone()),
        });
        let all = std::iter::once(("front".to_string(), front)).chain(parts);
        all.map(|(name, state)| vec![p.name.clone(), name, state]).collect::<Vec<_>>()
    };
    view.status.pools.iter().flat_map(of).collect()
}

fn speed(r: &Rates) -> [String; 2] {
    [format!("{:.0}", r.iops), format!("{}/s", bytes(r.bytes_per_s as u64))]
}

fn latency(l: &Latency) -> [String; 3] {
    if l.samples == 0 {
        return ["-".into(), "-".into(), "-".into()];
    }
    [micros(l.p50_us), micros(l.p99_us), micros(l.p999_us)]
}

/// Draws what is seen.
pub fn draw(frame: &mut Frame<'_>, view: &View, sort: Sort, scroll: &mut Scroll, trouble: Option<&str>, paused: bool) {
    let rows = [Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)];
    let [head, body, foot] = Layout::vertical(rows).areas(frame.area());
    let page = page(view, sort, usize::from(body.width), trouble);
    scroll.tables = page.tables;
    scroll.height = usize::from(body.height);
    scroll.top = scroll.top.min(page.lines.len().saturating_sub(scroll.height));
    let more = page.lines.len() - scroll.top > scroll.height;
    let seen: Vec<Line<'_>> = page.lines.into_iter().skip(scroll.top).take(scroll.height).collect();
    frame.render_widget(headline(view, trouble, paused), head);
    frame.render_widget(Paragraph::new(seen), body);
    let keys = format!(
        "q end  ↑↓ PgUp PgDn scroll{}  Tab table  s sort: {}  p pause",
        if more { " (more)" } else { "" },
        sort.name()
    );
    frame.render_widget(Paragraph::new(keys).style(Style::new().fg(Color::DarkGray)), foot);
}

struct Page {
    lines: Vec<Line<'static>>,
    /// First lines of the tables.
    tables: Vec<usize>,
}

const BAD: Style = Style::new().fg(Color::White).bg(Color::Red);

/// Problems, then all tables, in lines no longer than `width`.
fn page(view: &View, sort: Sort, width: usize, trouble: Option<&str>) -> Page {
    let problems = trouble.into_iter().chain(view.status.node.problems.iter().map(String::as_str));
    let wrapped = problems.flat_map(|p| wrap(p, width.saturating_sub(2)));
    let mut lines: Vec<Line<'static>> =
        wrapped.map(|text| Line::styled(text, Style::new().fg(Color::Red).add_modifier(Modifier::BOLD))).collect();
    let mut tables = Vec::new();
    for (title, head, rows) in self::tables(view, sort) {
        tables.push(lines.len());
        let rule = "─".repeat(width.saturating_sub(title.len() + 2));
        lines.push(Line::styled(format!(" {title} {rule}"), Style::new().fg(Color::DarkGray)));
        lines.extend(table_lines(head, rows, width));
    }
    Page { lines, tables }
}

/// A table's lines. Columns that don't fit are left out, the least important first; then the widest is cut.
fn table_lines(head: Head, rows: Vec<Vec<String>>, width: usize) -> Vec<Line<'static>> {
    let names: Vec<&str> = head.iter().map(|h| h.0).collect();
    let mut sizes = columns(&names, &rows);
    let mut shown: Vec<usize> = (0..head.len()).collect();
    let needed = |shown: &[usize], sizes: &[(usize, bool)]| {
        shown.iter().map(|c| sizes[*c].0 + 2).sum::<usize>().saturating_sub(2)
    };
    while needed(&shown, &sizes) > width {
        let Some(at) = (0..shown.len()).filter(|at| head[shown[*at]].1 > 1).max_by_key(|at| head[shown[*at]].1) else {
            break;
        };
        shown.remove(at);
    }
    while needed(&shown, &sizes) > width {
        let Some(widest) = shown.iter().copied().max_by_key(|c| sizes[*c].0).filter(|c| sizes[*c].0 > 4) else { break };
        sizes[widest].0 -= 1;
    }
    let line = |cells: &[String], style: fn(&str) -> Style| {
        let mut spans = Vec::new();
        for c in &shown {
            let (size, right) = sizes[*c];
            let text = cut(&cells[*c], size);
            let pad = " ".repeat(size - text.chars().count().min(size));
            let cell = Span::styled(text, style(&cells[*c]));
            let pad = Span::raw(pad);
            spans.extend(if right { [pad, cell] } else { [cell, pad] });
            spans.push(Span::raw("  "));
        }
        Line::from(spans)
    };
    let names: Vec<String> = names.into_iter().map(String::from).collect();
    let first = line(&names, |_| Style::new().fg(Color::Cyan));
    std::iter::once(first).chain(rows.iter().map(|r| line(r, style_of))).collect()
}

/// At most `size` characters of a text, and a sign where that isn't all.
fn cut(text: &str, size: usize) -> String {
    if text.chars().count() <= size {
        return text.to_string();
    }
    text.chars().take(size.saturating_sub(1)).chain(['…']).collect()
}

/// A text in lines of at most `width` characters, at spaces where there are some.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().expect("one at least");
        if last.is_empty() || last.chars().count() + 1 + word.chars().count() <= width {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        } else {
            lines.push(format!("  {word}"));
        }
    }
    lines
}

fn headline<'a>(view: &View, trouble: Option<&'a str>, paused: bool) -> Paragraph<'a> {
    let node = &view.status.node;
    let iops: f64 = view.tenants.iter().map(|r| r.iops).sum();
    let title = format!("plimsoll {}  up {} s  {iops:.0} IOPS  ", node.version, node.uptime_us / 1_000_000);
    let bold = BAD.add_modifier(Modifier::BOLD);
    let health = match (trouble, node.problems.len()) {
        (Some(_), _) => Span::styled(" no answer: old figures ", bold),
        (None, 0) => Span::styled("healthy", Style::new().fg(Color::Green)),
        (None, 1) => Span::styled(" 1 problem ", bold),
        (None, n) => Span::styled(format!(" {n} problems "), bold),
    };
    let paused = Span::styled(if paused { "  paused" } else { "" }, Style::new().fg(Color::Yellow));
    Paragraph::new(Line::from(vec![Span::styled(title, Style::new().add_modifier(Modifier::BOLD)), health, paused]))
}

fn style_of(text: &str) -> Style {
    match text {
        "BROKEN" | "failed" | "ended" => BAD,
        "degraded" | "recovering" => Style::new().fg(Color::Yellow),
        "kept" | "ready" => Style::new().fg(Color::Green),
        _ => Style::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widths(lines: &[Line<'_>]) -> Vec<usize> {
        lines.iter().map(Line::width).collect()
    }

    #[test]
    fn a_narrow_terminal_has_whole_names_and_the_important_columns() {
        let row = |name: &str| TENANTS.iter().map(|(head, _)| format!("{name} {head}")).collect::<Vec<_>>();
        let lines = table_lines(TENANTS, vec![row("archive"), row("web")], 80);
        assert!(widths(&lines).iter().all(|w| *w <= 82), "{:?}", widths(&lines));
        let text: Vec<String> = lines.iter().map(Line::to_string).collect();
        assert!(text[0].starts_with("TENANT") && text[1].starts_with("archive TENANT"), "{text:?}");
        assert!(text[1].contains("archive KEPT") && !text[1].contains("P99.9"), "{text:?}");
        let wide = table_lines(TENANTS, vec![row("web")], 400);
        assert!(wide[1].to_string().contains("web P99.9"));
    }

    #[test]
    fn long_texts_are_cut_at_their_ends_and_problems_wrapped() {
        assert_eq!((cut("archive", 7), cut("archive", 4)), ("archive".into(), "arc…".into()));
        assert_eq!(wrap("one two three", 8), ["one two", "  three"]);
        let lines = table_lines(STATES, vec![vec!["p".into(), "noop".into(), "x".repeat(200)]], 40);
        assert!(widths(&lines).iter().all(|w| *w <= 42));
    }

    #[test]
    fn tab_goes_round() {
        let mut scroll = Scroll { top: 0, height: 10, tables: vec![2, 9] };
        let tops: Vec<usize> = (0..4)
            .map(|_| {
                scroll.next_table();
                scroll.top
            })
            .collect();
        assert_eq!(tops, [2, 9, 0, 2]);
    }
}
