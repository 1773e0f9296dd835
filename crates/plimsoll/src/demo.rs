//! `plimsoll demo`: one load twice at the same time, on nodes without promises and on nodes with.
//!
//! ```text
//!                         ┌─ node 1: modelled drive ─┐
//!  database ──────────────┤                          │   each side has two nodes of its own, and clients with the same seeds;
//!  web ── reads ──┬───────┘                          │   the sides differ in the nodes' configuration and in the web's reads,
//!                 └───────── node 2: modelled drive ─┤   which have a deadline on one side
//!  neighbour ── bursts, now on one, now on the other ┘
//! ```
//! The nodes are processes of this program. The figures shown are measured by the clients.

mod load;
mod nodes;
mod outcome;
mod record;
mod screen;

use crate::output::{may_be_replaced, print};
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use load::Load;
use nodes::Nodes;
use outcome::Outcome;
use plimsoll_base::Span;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use record::{Recorder, Side};
use screen::View;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Run one load on storage without promises and with, side by side.
///
/// Four nodes of this program serve modelled SATA flash drives in real time, two for each side. The same clients use both sides: a
/// database (small durable writes and reads), a web server (reads that two nodes have) and a noisy neighbour (bursts of deep large
/// reads and writes). Needs no root and no configuration, and up to 2 GiB in the folder for temporary files (TMPDIR).
#[derive(Args)]
#[command(
    after_help = "In a terminal, q or Ctrl-C ends it early.\n\nExamples:\n  plimsoll demo\n  plimsoll demo --seconds 20 --json demo.json"
)]
pub struct Demo {
    /// Seconds of load.
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u32).range(4..=3600))]
    seconds: u32,
    /// Seed of addresses, arrivals and bursts.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Server of the side without promises.
    #[arg(long, value_enum, default_value_t)]
    without: Without,
    /// Also write the result to a file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The server of the side without promises.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Without {
    /// Plimsoll's own node, first in first out, without cores, deadlines and admission.
    #[default]
    Node,
    /// nbdkit's NBD proxy in front of the same; nbdkit must be installed.
    Nbdkit,
    /// The same, and its rate filter limits the neighbour to 13 MB/s at each node: about what promises leave to it beside the database.
    NbdkitLimit,
}

impl Without {
    /// Text for results.
    fn text(self) -> String {
        match self {
            Without::Node => "plimsoll without promises".into(),
            Without::Nbdkit => "nbdkit".into(),
            Without::NbdkitLimit => format!("nbdkit, neighbour limited to {} MB/s a node", LIMIT / 1_000_000),
        }
    }
}

/// Bytes of the neighbour in a second at each node, where nbdkit limits it.
const LIMIT: u64 = 13_000_000;

/// Percentile of the database's objective, its bound, and the deadline of the web's reads.
const PERCENTILE: u32 = 99;
const OBJECTIVE: Span = Span::from_millis(15);
const DEADLINE: Span = Span::from_millis(10);
/// A frame of the chart.
const REFRESH: Duration = Duration::from_millis(250);
/// The ticker's sleep. Oversleeping by more than that is a pause of this machine.
const TICK: Duration = Duration::from_millis(1);

impl Demo {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        // An unwritable file is an error before the minute, not after it.
        self.json.as_ref().map_or(Ok(()), |file| may_be_replaced(file))?;
        let json = self.json.as_ref().map(|file| std::fs::File::create(file).map(|f| (f, file))).transpose();
        let json = json.with_context(|| format!("cannot write {}", self.json.as_ref().expect("named").display()))?;
        let stop = Stop::on_signals()?;
        let folder = tempfile::Builder::new().prefix("plimsoll-demo-").tempdir().context("no temporary folder")?;
        let nodes = Nodes::start(folder.path(), self.without)?;
        let outcome = self.measure(&nodes, &stop);
        nodes.stop();
        folder.close().context("a temporary folder is left")?;
        let outcome = outcome?;
        let mut out = std::io::stdout().lock();
        let _ = write!(out, "{}", outcome.text()); // its reader may be gone
        if let Some((mut to, file)) = json {
            let text = serde_json::to_string_pretty(&outcome)? + "\n";
            to.write_all(text.as_bytes()).with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(())
    }

    fn measure(&self, nodes: &Nodes, stop: &Stop) -> Result<Outcome> {
        let began = Instant::now();
        let ends = began + Duration::from_secs(u64::from(self.seconds));
        let record = Side::both(|| Arc::new(Recorder::new(began, self.seconds)));
        let ticks = stop.wait.clone();
        let ticker = std::thread::spawn(move || tick(&ticks, ends));
        let load = Load { seed: self.seed, began, ends, stop: stop.wait.clone() };
        let clients = load.start(nodes, &record)?;
        let view = View { seconds: self.seconds, record: &record, dashboards: nodes.dashboards() };
        let shown = watch(&view, began, stop, &clients);
        if shown.is_err() {
            stop.now();
        }
        let ended = clients.into_iter().map(|c| c.join().unwrap_or_else(|_| Err(anyhow!("a client's thread failed"))));
        let ended: Vec<Result<()>> = ended.collect();
        shown?;
        ended.into_iter().collect::<Result<()>>()?;
        let seconds = (began.elapsed().as_secs() as u32).min(self.seconds);
        if seconds < 2 {
            bail!("ended before there was anything to show");
        }
        Ok(Outcome::of(self, &record, seconds, ticker.join().unwrap_or(0.0)))
    }
}

/// Ends everything: set by a signal or a key.
struct Stop {
    set: Arc<watch::Sender<bool>>,
    wait: watch::Receiver<bool>,
}

impl Stop {
    /// From now on SIGINT, SIGTERM and SIGHUP set it instead of ending the process.
    fn on_signals() -> Result<Stop> {
        let (set, wait) = watch::channel(false);
        let stop = Stop { set: Arc::new(set), wait };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let inside = runtime.enter();
        let [mut interrupt, mut terminate, mut hangup] =
            [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?];
        drop(inside);
        let set = stop.set.clone();
        std::thread::spawn(move || {
            runtime.block_on(async {
                loop {
                    tokio::select! {
                        _ = interrupt.recv() => {}
                        _ = terminate.recv() => {}
                        _ = hangup.recv() => {}
                    }
                    set.send_replace(true);
                }
            });
        });
        Ok(stop)
    }

    fn now(&self) {
        self.set.send_replace(true);
    }

    fn is_set(&self) -> bool {
        *self.wait.borrow()
    }
}

/// Sleeps a millisecond again and again until the end; the share of the time that it overslept.
fn tick(stop: &watch::Receiver<bool>, ends: Instant) -> f64 {
    let (began, mut over) = (Instant::now(), Duration::ZERO);
    while Instant::now() < ends && !*stop.borrow() {
        let before = Instant::now();
        std::thread::sleep(TICK);
        over += before.elapsed().checked_sub(2 * TICK).map_or(Duration::ZERO, |late| late + TICK);
    }
    over.as_secs_f64() / began.elapsed().as_secs_f64().max(1e-9)
}

/// Shows the chart, or lines where there is no terminal, until the clients have ended or are to end.
fn watch(view: &View<'_>, began: Instant, stop: &Stop, clients: &[JoinHandle<Result<()>>]) -> Result<()> {
    let at_work = || !clients.iter().any(JoinHandle::is_finished) && !stop.is_set();
    if !std::io::stdout().is_terminal() {
        return lines(view, began, at_work);
    }
    let mut terminal = ratatui::try_init()?;
    let result = draw(&mut terminal, view, began, stop, at_work);
    ratatui::restore();
    result
}

fn draw(
    terminal: &mut ratatui::DefaultTerminal,
    view: &View<'_>,
    began: Instant,
    stop: &Stop,
    at_work: impl Fn() -> bool,
) -> Result<()> {
    while at_work() {
        terminal.draw(|frame| screen::draw(frame, view, began.elapsed()))?;
        if event::poll(REFRESH)?
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            let interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
            if interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                stop.now();
            }
        }
    }
    Ok(())
}

fn lines(view: &View<'_>, began: Instant, at_work: impl Fn() -> bool) -> Result<()> {
    print(&screen::head(view))?;
    let mut shown = 0;
    loop {
        let working = at_work();
        // The second before the current one is complete.
        let complete = (began.elapsed().as_secs() as u32).min(view.seconds);
        for second in shown..complete {
            print(&format!("{}\n", screen::line(view, second)))?;
        }
        shown = complete;
        if !working {
            return Ok(());
        }
        std::thread::sleep(REFRESH);
    }
}
