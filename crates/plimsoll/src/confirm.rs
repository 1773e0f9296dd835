//! Questions before data are lost.

use anyhow::{Result, bail};
use std::io::{IsTerminal, Write};

/// Asks on the terminal for `name` to be typed again.
///
/// # Errors
/// If something else is typed, or there is no terminal to ask on.
pub fn by_name(what: &str, name: &str) -> Result<()> {
    if !std::io::stdin().is_terminal() {
        bail!("{what} There is no terminal to ask on: say --yes");
    }
    let mut err = std::io::stderr().lock();
    write!(err, "{what}\nType its name to go on: ")?;
    err.flush()?;
    let mut typed = String::new();
    std::io::stdin().read_line(&mut typed)?;
    if typed.trim_end_matches(['\n', '\r']) != name {
        bail!("that isn't `{name}`: nothing was done");
    }
    Ok(())
}
