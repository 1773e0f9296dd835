//! The log of a node: on standard error, as text, as JSON, or for the journal where systemd reads it.

use plimsoll_node::config::{Log, LogLevel};
use std::fmt;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{Compact, Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

/// Begins to log. Returns what sets the level; PLIMSOLL_LOG goes before it.
pub fn start(json: bool) -> impl Fn(Log) {
    let from_environment: Option<Targets> = std::env::var("PLIMSOLL_LOG").ok().and_then(|w| w.parse().ok());
    let first = from_environment.clone().unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let (filter, handle) = reload::Layer::new(first);
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    // Nobody may take the log any more (a closed pipe, a full disk): complaining of that on stderr would be a panic.
    let to_stderr = || tracing_subscriber::fmt::layer().with_writer(std::io::stderr).log_internal_errors(false);
    let log = tracing_subscriber::registry().with(filter);
    if json {
        log.with(to_stderr().json()).init();
    } else if goes_to_journal() {
        log.with(to_stderr().with_ansi(false).event_format(ForJournal::new())).init();
    } else {
        log.with(to_stderr().with_ansi(colours).compact().with_target(false)).init();
    }
    move |log| {
        if from_environment.is_none() {
            let _ = handle.reload(Targets::new().with_default(level(log.level))); // it is there as long as the process
        }
    }
}

fn level(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

/// True if standard error is the stream that the journal reads, by the environment's `JOURNAL_STREAM`.
fn goes_to_journal() -> bool {
    let Ok(named) = std::env::var("JOURNAL_STREAM") else { return false };
    let stat = rustix::fs::fstat(std::io::stderr());
    stat.is_ok_and(|s| named == format!("{}:{}", s.st_dev, s.st_ino))
}

/// Lines with a priority, which the journal takes off, and without a time, which it adds itself.
struct ForJournal(Format<Compact, ()>);

impl ForJournal {
    fn new() -> ForJournal {
        let format = tracing_subscriber::fmt::format().compact().without_time();
        ForJournal(format.with_target(false).with_level(false).with_ansi(false))
    }
}

impl<S, N> FormatEvent<S, N> for ForJournal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        };
        write!(writer, "<{priority}>")?;
        self.0.format_event(ctx, writer, event)
    }
}
