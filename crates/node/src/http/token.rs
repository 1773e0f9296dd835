//! The token that changes over TCP must show.

use crate::config::BadConfig;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// 32 random bytes as 64 hexadecimal digits, in a file that only its owner may read.
#[derive(Clone)]
pub struct Token(String);

const RANDOM_BYTES: usize = 32;
/// Tokens that operators write themselves may be of any form, but not guessable.
const LEN_MIN: usize = 16;

impl Token {
    /// Reads the token of `path`; makes one if the file doesn't exist, or is empty.
    ///
    /// A new token is written to a file beside it, made durable and only then named `path`: a crash leaves no half of one.
    /// An empty file, which a crash of an earlier version left, is replaced.
    ///
    /// # Errors
    /// If the file can't be read or made, if others may read it or own it, or if what it holds is too short.
    pub fn load_or_make(path: &Path) -> Result<Token, BadConfig> {
        let said = |what: &dyn std::fmt::Display| {
            BadConfig::found(what).about(format!("control.token_file {}", path.display()))
        };
        let len = match std::fs::metadata(path) {
            Ok(m) => Some(m.len()),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => return Err(said(&e)),
        };
        match len {
            None => make(path, |new| std::fs::hard_link(new, path)).or_else(|e| match e.kind() {
                ErrorKind::AlreadyExists => Token::load_own(path),
                _ => Err(said(&e)),
            }),
            Some(0) => {
                Token::check_file(path, true)?;
                make(path, |new| std::fs::rename(new, path)).map_err(|e| said(&e))
            }
            Some(_) => Token::load_own(path),
        }
    }

    fn load_own(path: &Path) -> Result<Token, BadConfig> {
        Token::check_file(path, true)?;
        Token::load(path)
    }

    /// Checks mode and owner: whoever may read the file knows the token, and its owner may read it.
    fn check_file(path: &Path, own: bool) -> Result<(), BadConfig> {
        let said =
            |what: &dyn std::fmt::Display| BadConfig::found(what).about(format!("token file {}", path.display()));
        let file = std::fs::metadata(path).map_err(|e| said(&e))?;
        let mode = file.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(said(&format!("others may read it (mode {mode:o}): make a new token, then `chmod 600` it")));
        }
        let me = rustix::process::geteuid().as_raw();
        if own && file.uid() != me && file.uid() != 0 {
            let uid = file.uid();
            return Err(said(&format!(
                "it belongs to user {uid}, who knows the token, but the node runs as {me}: remove it, and the node makes one"
            )));
        }
        Ok(())
    }

    /// Reads the token of `path`.
    ///
    /// # Errors
    /// If the file can't be read, if others may read it, or if what it holds is too short.
    pub fn load(path: &Path) -> Result<Token, BadConfig> {
        let said =
            |what: &dyn std::fmt::Display| BadConfig::found(what).about(format!("token file {}", path.display()));
        Token::check_file(path, false)?;
        let text = std::fs::read_to_string(path).map_err(|e| said(&e))?;
        let token = text.trim();
        if token.len() < LEN_MIN || !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(said(&format!(
                "holds no token of at least {LEN_MIN} printable characters: remove it, and the node makes one"
            )));
        }
        Ok(Token(token.to_string()))
    }

    /// True if `shown` is the token. Takes the same time wherever the first difference is.
    pub fn is(&self, shown: &str) -> bool {
        let (ours, theirs) = (self.0.as_bytes(), shown.as_bytes());
        ours.len() == theirs.len() && ours.iter().zip(theirs).fold(0, |d, (a, b)| d | (a ^ b)) == 0
    }

    /// For who sends it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Writes a new token to a file beside `path`, durably, and has `name_it` give it its name.
fn make(path: &Path, name_it: impl FnOnce(&Path) -> std::io::Result<()>) -> std::io::Result<Token> {
    let token = Token(random_hex()?);
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}", &random_hex()?[..16])); // nobody can have made it before
    let new = PathBuf::from(new);
    let mut file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&new)?;
    let written = writeln!(file, "{}", token.0).and_then(|()| file.sync_all()).and_then(|()| name_it(&new));
    let removed = std::fs::remove_file(&new); // unless it was renamed
    written?;
    match removed {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(folder)?.sync_all()?;
    Ok(token)
}

fn random_hex() -> std::io::Result<String> {
    let mut bytes = [0; RANDOM_BYTES];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn made_once_kept_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let made = Token::load_or_make(&path).unwrap();
        assert_eq!(made.as_str().len(), 64);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(Token::load_or_make(&path).unwrap().is(made.as_str()), "kept");
        assert!(!made.is("") && !made.is(&"0".repeat(64)) && !made.is(&made.as_str()[..63]));
        let other = Token::load_or_make(&dir.path().join("other")).unwrap();
        assert!(!made.is(other.as_str()), "random");

        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(Token::load_or_make(&path).err().unwrap().to_string().contains("others may read it (mode 644)"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, "short\n").unwrap();
        assert!(Token::load_or_make(&path).err().unwrap().to_string().contains("holds no token"));
        let files: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
        assert_eq!(files.len(), 2, "no half-made token is left: {files:?}");
    }

    #[test]
    fn an_empty_file_is_a_crash_and_not_a_token() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let empty = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&path).unwrap();
        drop(empty);
        let made = Token::load_or_make(&path).unwrap();
        assert_eq!((made.as_str().len(), std::fs::metadata(&path).unwrap().mode() & 0o777), (64, 0o600));
        assert!(Token::load(&path).unwrap().is(made.as_str()));
    }

    #[test]
    fn who_owns_the_file_knows_the_token() {
        if !rustix::process::geteuid().is_root() {
            println!("ran without another user's file: making one needs root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        Token::load_or_make(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        assert!(Token::load_or_make(&path).err().unwrap().to_string().contains("belongs to user 65534"));
        assert!(Token::load(&path).is_ok(), "a client may be another user");
    }
}
