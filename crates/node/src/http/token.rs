//! The token that changes over TCP must show.

use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// 32 random bytes as 64 hexadecimal digits, in a file that only its owner may read.
#[derive(Clone)]
pub struct Token(String);

const RANDOM_BYTES: usize = 32;
/// Tokens that operators write themselves may be of any form, but not guessable.
const LEN_MIN: usize = 16;

impl Token {
    /// Reads the token of `path`; makes one if the file doesn't exist.
    ///
    /// # Errors
    /// If the file can't be read or made, if others may read it, or if what it holds is too short.
    pub fn load_or_make(path: &Path) -> Result<Token, String> {
        let made = std::fs::File::options().write(true).create_new(true).mode(0o600).open(path);
        let said = |what: &dyn std::fmt::Display| format!("control.token_file {}: {what}", path.display());
        match made {
            Ok(mut file) => {
                let token = Token(random_hex().map_err(|e| said(&e))?);
                writeln!(file, "{}", token.0).and_then(|()| file.sync_all()).map_err(|e| said(&e))?;
                Ok(token)
            }
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Token::load(path),
            Err(e) => Err(said(&e)),
        }
    }

    /// Reads the token of `path`.
    ///
    /// # Errors
    /// As [`Token::load_or_make`].
    pub fn load(path: &Path) -> Result<Token, String> {
        let said = |what: &dyn std::fmt::Display| format!("token file {}: {what}", path.display());
        let mode = std::fs::metadata(path).map_err(|e| said(&e))?.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(said(&format!("others may read it (mode {mode:o}): make a new token, then `chmod 600` it")));
        }
        let text = std::fs::read_to_string(path).map_err(|e| said(&e))?;
        let token = text.trim();
        if token.len() < LEN_MIN || !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(said(&format!(
                "holds no token of at least {LEN_MIN} printable characters: remove it, and the node makes one"
            )));
        }
        Ok(Token(token.to_string()))
    }

    /// Is `shown` the token? Takes as long wherever the first difference is.
    pub fn is(&self, shown: &str) -> bool {
        let (ours, theirs) = (self.0.as_bytes(), shown.as_bytes());
        ours.len() == theirs.len() && ours.iter().zip(theirs).fold(0, |d, (a, b)| d | (a ^ b)) == 0
    }

    /// For who sends it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
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
        assert!(Token::load_or_make(&path).err().unwrap().contains("others may read it (mode 644)"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, "short\n").unwrap();
        assert!(Token::load_or_make(&path).err().unwrap().contains("holds no token"));
    }
}
