//! `--storage-node`: joint control with the Plimsoll node that the database's volume is on.

use crate::client::{Client, Control, segment as path_segment};
use anyhow::{Context, Result, bail};
use clap::Args;
use plimsoll_base::Span;
use plimsoll_node::http::api::VolumeStatus;
use plimsoll_shape::control::PMode;
use plimsoll_shape::gate::P_UNLIMITED;
use plimsoll_shape::segment::Segment;
use plimsoll_shape::tune::pressure::Pressure;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The storage below the database.
#[derive(Args, Clone)]
pub struct Storage {
    /// The node that the database's volume is on (its control socket or http://HOST:PORT): its forecast lowers P.
    #[arg(long, value_name = "PATH|URL", requires = "storage_volume")]
    storage_node: Option<String>,
    /// That volume.
    #[arg(long, value_name = "NAME", requires = "storage_node")]
    storage_volume: Option<String>,
    /// File with that node's token, which a packaged node takes over TCP; its control socket takes none.
    #[arg(long, value_name = "FILE", requires = "storage_node")]
    token_file: Option<PathBuf>,
    /// Forecast waits up to this are fine.
    #[arg(long, value_name = "MS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    storage_wait_ms: u64,
}

/// Between two questions.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// An answer that takes longer says nothing about now.
const ANSWER_TIME: Duration = Duration::from_millis(500);

impl Storage {
    /// Lets the forecast move the gate at `control` from now on, if a node was named.
    ///
    /// # Errors
    /// If there is no P to lower, the node can't be asked, or has no such volume: a typing error must not go unnoticed. Later
    /// failures only cause a warning.
    pub fn watch(&self, control: &Path, p: PMode) -> Result<()> {
        let (Some(node), Some(volume)) = (&self.storage_node, &self.storage_volume) else { return Ok(()) };
        if p == PMode::Fixed(P_UNLIMITED) {
            bail!("a forecast can't lower P where there is none: give --p auto or a number with --storage-node");
        }
        let client = Client::new(&Control::at(node, self.token_file.as_deref()))?;
        let path = format!("/v1/volumes/{}", path_segment(volume));
        client.get::<VolumeStatus>(&path).context("cannot ask for the storage's forecast")?;
        let segment = Segment::open(control)?;
        let mut pressure = Pressure::new(Span::from_millis(self.storage_wait_ms));
        std::thread::Builder::new().name("storage".into()).spawn(move || {
            let mut heard = true;
            loop {
                // Forecasts are asked for: the node pushes none.
                std::thread::sleep(ASK_EVERY);
                let answer = client.get_within::<VolumeStatus>(&path, ANSWER_TIME);
                let milli = match &answer {
                    Ok(v) => pressure.forecast(Span::from_micros(v.traffic.next_read_wait_us)),
                    Err(_) => pressure.silent(),
                };
                segment.control().pressure_milli.store(milli, Ordering::Relaxed);
                match (heard, &answer) {
                    (true, Err(e)) => eprintln!("plimsoll: no forecast from the storage, P stands alone: {e:#}"),
                    (false, Ok(_)) => eprintln!("plimsoll: the storage forecasts again"),
                    _ => {}
                }
                heard = answer.is_ok();
            }
        })?;
        Ok(())
    }
}
