//! The program's output into a pipe that nobody reads any more, and onto a full device.

use std::process::{Command, Output, Stdio};

fn list_to(out: Stdio) -> Output {
    let lab = Command::new(env!("CARGO_BIN_EXE_plimsoll-lab")).arg("list").stdout(out).stderr(Stdio::piped()).spawn();
    lab.unwrap().wait_with_output().unwrap()
}

#[test]
fn a_reader_that_has_gone_is_no_fault_and_a_full_device_is_one() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ended = list_to(writer.into());
    assert_eq!((ended.status.code(), String::from_utf8_lossy(&ended.stderr).as_ref()), (Some(141), ""));
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let ended = list_to(full.into());
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(
        ended.status.code() == Some(1) && said.starts_with("plimsoll-lab: cannot write to standard output: "),
        "{said}"
    );
}
