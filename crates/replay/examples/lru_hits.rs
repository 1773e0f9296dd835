//! Hit counts of a plain LRU cache over a trace, as JSON lines: what `tests/peers/libcachesim_lru.py` compares.
//!
//! ```text
//! cargo run --release -p plimsoll-replay --example lru_hits -- object|block TRACE CAPACITY_BYTES…
//! ```

use plimsoll_replay::lru::{Granularity, replay};
use plimsoll_trace::{ReadOptions, TraceReader};
use std::path::Path;
use std::process::ExitCode;

fn run(args: &[String]) -> Result<(), String> {
    let [granularity, trace, capacities @ ..] = args else {
        return Err("usage: lru_hits object|block TRACE CAPACITY_BYTES…".to_string());
    };
    let unit = match granularity.as_str() {
        "object" => Granularity::Object,
        "block" => Granularity::Block(4096),
        other => return Err(format!("`{other}` is no granularity: use object or block")),
    };
    let capacities: Vec<u64> = capacities
        .iter()
        .map(|c| c.parse().map_err(|_| format!("`{c}` is no number of bytes")))
        .collect::<Result<_, _>>()?;
    let mut reader = TraceReader::open(Path::new(trace), &ReadOptions::default()).map_err(|e| e.to_string())?;
    let found = replay(&mut reader, unit, &capacities).map_err(|e| e.to_string())?;
    for (capacity, hits) in capacities.iter().zip(found) {
        println!(
            r#"{{"granularity":"{granularity}","capacity_bytes":{capacity},"accesses":{},"hits":{}}}"#,
            hits.accesses, hits.hits
        );
    }
    Ok(())
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("lru_hits: {e}");
            ExitCode::FAILURE
        }
    }
}
