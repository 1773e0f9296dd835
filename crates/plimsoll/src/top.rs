//! `plimsoll top`: who gets what, and whether each promise is kept, once a second.

mod rates;
mod screen;

use crate::client::{Client, Control, print_json};
use anyhow::Result;
use clap::Args;
use plimsoll_node::http::api::Status;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use rates::View;
use screen::{Scroll, Sort};
use std::time::{Duration, Instant};

/// Watch a node: tenants, volumes, layers.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  plimsoll top --control /run/plimsoll/control.sock\n  plimsoll top --once --json | jq '.tenants[].iops'"
)]
pub struct Top {
    /// Print the figures of one second and exit.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    control: Control,
}

const REFRESH: Duration = Duration::from_secs(1);

impl Top {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        if self.control.json && !self.once {
            anyhow::bail!("--json prints once: say `top --once --json`");
        }
        if !self.once && !std::io::IsTerminal::is_terminal(&std::io::stdout()) {
            anyhow::bail!("`top` draws in a terminal, and this is none: say `top --once`, or `top --once --json`");
        }
        let client = Client::new(&self.control)?;
        let read = || client.get::<Status>("/v1/status");
        let first = read()?;
        if self.once {
            std::thread::sleep(REFRESH);
            let view = View::between(&first, read()?);
            if self.control.json {
                return print_json(&view);
            }
            print!("{}", screen::text(&view));
            return Ok(());
        }
        let mut terminal = ratatui::try_init()?;
        let result = watch(&mut terminal, first, read);
        ratatui::restore();
        result
    }
}

fn watch(terminal: &mut ratatui::DefaultTerminal, first: Status, read: impl Fn() -> Result<Status>) -> Result<()> {
    let mut view = View::between(&first, first.clone());
    let mut trouble = None;
    let mut next = Instant::now();
    let (mut sort, mut scroll, mut paused) = (Sort::default(), Scroll::default(), false);
    loop {
        if next <= Instant::now() && paused {
            next = Instant::now() + REFRESH;
        } else if next <= Instant::now() {
            next += REFRESH;
            match read() {
                Ok(now) => (view, trouble) = (View::between(&view.status, now), None),
                // It may be restarting: what was seen last stays, with the trouble above it.
                Err(e) => trouble = Some(format!("{e:#}")),
            }
        }
        terminal.draw(|frame| screen::draw(frame, &view, sort, &mut scroll, trouble.as_deref(), paused))?;
        if event::poll(next.saturating_duration_since(Instant::now()))?
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            let interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
            match key.code {
                _ if interrupt => return Ok(()),
                KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                KeyCode::Char('s') => sort = sort.next(),
                KeyCode::Char('p') => paused = !paused,
                KeyCode::Down | KeyCode::Char('j') => scroll.top += 1,
                KeyCode::Up | KeyCode::Char('k') => scroll.top = scroll.top.saturating_sub(1),
                KeyCode::PageDown | KeyCode::Char(' ') => scroll.top += scroll.height,
                KeyCode::PageUp => scroll.top = scroll.top.saturating_sub(scroll.height),
                KeyCode::Home => scroll.top = 0,
                KeyCode::End => scroll.top = usize::MAX,
                KeyCode::Tab => scroll.next_table(),
                _ => {}
            }
        }
    }
}
