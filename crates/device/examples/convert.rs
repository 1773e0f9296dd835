//! Prints a DiskSim-4 parameter set as a profile: `cargo run -p plimsoll-device --example convert -- NAME.diskspecs [NAME.model]`.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let files: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [specs, model @ ..] = files.as_slice() else {
        eprintln!("usage: convert NAME.diskspecs [NAME.model]");
        return ExitCode::from(2);
    };
    match plimsoll_device::diskspec::load(specs, model.first().map(PathBuf::as_path)) {
        Ok(spec) => {
            print!("{}", spec.to_toml());
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
