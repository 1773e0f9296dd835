//! The tables of `plimsoll top`, in a terminal or as text.

use super::rates::{Rates, View};
use crate::table::{bytes, columns, micros, table};
use crate::tenant::{kept, promise};
use plimsoll_node::http::api::{Latency, LayerStatus, PoolStatus};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table};

const TENANTS: [&str; 9] = ["TENANT", "PROMISE", "KEPT", "IOPS", "RATE", "P50", "P99", "P99.9", "BUSY/S"];
const VOLUMES: [&str; 10] = ["VOLUME", "STATE", "SIZE", "CLIENTS", "IOPS", "RATE", "P99", "BUSY/S", "INSIDE", "OLDEST"];
const LAYERS: [&str; 8] = ["POOL", "LAYER", "ENTERED", "WAITED", "WAIT P50", "WAIT P99", "OWN I/O", "REVOKED"];
const STATES: [&str; 3] = ["POOL", "LAYER", "STATE"];

/// All tables as text.
pub fn text(view: &View) -> String {
    let tables = [
        table(&TENANTS, &tenants(view)),
        table(&VOLUMES, &volumes(view)),
        table(&LAYERS, &layers(view)),
        table(&STATES, &states(view)),
    ];
    tables.join("\n")
}

fn tenants(view: &View) -> Vec<Vec<String>> {
    let row = |(r, t): (&Rates, &plimsoll_node::http::api::TenantStatus)| {
        let mut cells = vec![t.name.clone(), promise(t), kept(t)];
        cells.extend(speed(r));
        cells.extend(latency(&r.last_second));
        cells.push(format!("{:.0}", r.busy_per_s));
        cells
    };
    view.tenants.iter().zip(&view.status.tenants).map(row).collect()
}

fn volumes(view: &View) -> Vec<Vec<String>> {
    let row = |(r, v): (&Rates, &plimsoll_node::http::api::VolumeStatus)| {
        let mut cells = vec![v.name.clone(), v.state.clone(), bytes(v.size_bytes), v.connections.to_string()];
        cells.extend(speed(r));
        cells.push(latency(&r.last_second)[1].clone());
        cells.push(format!("{:.0}", r.busy_per_s));
        cells.push(v.traffic.inside.to_string());
        cells.push(v.traffic.oldest.as_ref().map_or("-".into(), |o| format!("{} {}", micros(o.age_us), o.at)));
        cells
    };
    view.volumes.iter().zip(&view.status.volumes).map(row).collect()
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

/// Draws all of it.
pub fn draw(frame: &mut Frame<'_>, view: &View, trouble: Option<&str>) {
    let heights = |n: usize| Constraint::Length(n as u16 + 3);
    let areas = Layout::vertical([
        Constraint::Length(2),
        heights(view.tenants.len()),
        heights(view.volumes.len()),
        heights(layers(view).len()),
        Constraint::Min(4),
        Constraint::Length(1),
    ])
    .split(frame.area());
    frame.render_widget(headline(view, trouble), areas[0]);
    frame.render_widget(widget(" Tenants ", &TENANTS, tenants(view)), areas[1]);
    frame.render_widget(widget(" Volumes ", &VOLUMES, volumes(view)), areas[2]);
    frame.render_widget(widget(" Layers, since the start ", &LAYERS, layers(view)), areas[3]);
    frame.render_widget(widget(" State of layers ", &STATES, states(view)), areas[4]);
    let keys = "q ends   latencies: last second   promises: last minute   classes are measured, not enforced, where no layer does";
    frame.render_widget(Paragraph::new(keys).style(Style::new().fg(Color::DarkGray)), areas[5]);
}

fn headline<'a>(view: &View, trouble: Option<&'a str>) -> Paragraph<'a> {
    let node = &view.status.node;
    let iops: f64 = view.tenants.iter().map(|r| r.iops).sum();
    let title = format!("plimsoll {}  up {} s  {iops:.0} IOPS  ", node.version, node.uptime_us / 1_000_000);
    let bad = Style::new().fg(Color::White).bg(Color::Red).add_modifier(Modifier::BOLD);
    let health = match trouble {
        Some(t) => Span::styled(format!(" {t} "), bad),
        None if node.healthy => Span::styled("healthy", Style::new().fg(Color::Green)),
        None => Span::styled(format!(" {} ", node.problems.join("; ")), bad),
    };
    Paragraph::new(Line::from(vec![Span::styled(title, Style::new().add_modifier(Modifier::BOLD)), health]))
}

fn widget<'a>(title: &'a str, head: &[&'a str], rows: Vec<Vec<String>>) -> Table<'a> {
    let columns = columns(head, &rows);
    let widths = columns.iter().map(|(width, _)| Constraint::Length(*width as u16)).collect::<Vec<_>>();
    let placed = |text: Line<'a>, right: bool| if right { text.right_aligned() } else { text };
    let rows = rows.into_iter().map(|cells| {
        Row::new(cells.into_iter().zip(&columns).map(|(c, (_, right))| {
            let style = style_of(&c);
            Cell::new(placed(Line::from(c), *right)).style(style)
        }))
    });
    let rows: Vec<Row<'a>> = rows.collect();
    let head = head.iter().zip(&columns).map(|(h, (_, right))| placed(Line::from(*h), *right));
    let head = Row::new(head.map(Cell::new)).style(Style::new().fg(Color::Cyan));
    let block = Block::new().borders(Borders::TOP).title(title);
    Table::new(rows, widths).header(head).column_spacing(2).block(block)
}

fn style_of(text: &str) -> Style {
    match text {
        "BROKEN" | "failed" => Style::new().fg(Color::White).bg(Color::Red),
        "degraded" | "recovering" => Style::new().fg(Color::Yellow),
        "kept" | "ready" => Style::new().fg(Color::Green),
        _ => Style::new(),
    }
}
