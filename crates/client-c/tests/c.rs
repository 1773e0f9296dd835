//! A C program is compiled as one would with the installed client, by pkg-config, and run.

#[path = "../../client/tests/fake/mod.rs"]
mod fake;

use fake::{Does, Fake};
use plimsoll_testkit::library_folder;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Returns a command's output; panics if it fails.
fn said(command: &mut Command) -> String {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = command.output().unwrap_or_else(|e| panic!("{name}: {e}: `make test-deps` installs it"));
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{name}: {said}");
    said
}

/// A client that is installed as one's users have it.
struct Installed {
    libraries: PathBuf,
    flags: String,
}

impl Installed {
    fn into(prefix: &Path) -> Installed {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"));
        said(
            Command::new(source.join("install.sh"))
                .arg(library_folder("plimsoll-client-c"))
                .arg(prefix)
                .env_remove("DESTDIR"),
        );
        let libraries = prefix.join("lib");
        let mut asked = Command::new("pkg-config");
        asked.args(["--cflags", "--libs", "plimsoll-client"]).env("PKG_CONFIG_PATH", libraries.join("pkgconfig"));
        Installed { flags: said(&mut asked), libraries }
    }

    fn compile(&self, source: &str, program: &Path) {
        let compiled = said(
            Command::new("cc")
                .args(["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-pthread", "-D_POSIX_C_SOURCE=200809L"])
                .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(source))
                .arg("-o")
                .arg(program)
                .args(self.flags.split_whitespace()),
        );
        assert_eq!(compiled, "");
    }
}

#[test]
fn a_c_program_reads() {
    let dir = tempfile::tempdir().unwrap();
    let fakes = [("a", 1, Does::Busy(50_000)), ("b", 2, Does::Serve), ("c", 3, Does::Serve)]
        .map(|(name, fill, does)| Fake::start(dir.path(), name, fill, does));
    let (installed, program) = (Installed::into(&dir.path().join("usr")), dir.path().join("smoke"));
    installed.compile("tests/c/smoke.c", &program);
    let addresses: Vec<String> = fakes.iter().map(|f| f.address().to_string()).collect();
    // A program asks for the version of the interface that it was linked with.
    std::fs::remove_file(installed.libraries.join("libplimsoll_client_c.so")).unwrap();
    let ran = said(Command::new(program).args(addresses).env("LD_LIBRARY_PATH", &installed.libraries));
    assert!(ran.contains("ok"), "{ran}");
}

#[test]
fn a_program_includes_the_headers_of_volumes_and_of_host_mode() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut cc = Command::new("cc");
    cc.args(["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", "-D_POSIX_C_SOURCE=200809L"]);
    cc.arg("-I").arg(source.join("include")).arg("-I").arg(source.join("../host-c/include"));
    said(cc.arg(source.join("tests/c/both.c")));
}

#[test]
fn calls_that_cant_be_served_fail_with_words() {
    let dir = tempfile::tempdir().unwrap();
    let fakes =
        [("serves", Does::Serve), ("holds", Does::Hold)].map(|(name, does)| Fake::start(dir.path(), name, 1, does));
    said(Command::new("mkfifo").arg(dir.path().join("ca-cert.pem")));
    let (installed, program) = (Installed::into(&dir.path().join("usr")), dir.path().join("misuse"));
    installed.compile("tests/c/misuse.c", &program);
    let addresses = fakes.iter().map(|f| f.address().to_string());
    let mut run = Command::new(program);
    run.args(addresses).arg(dir.path()).env("LD_LIBRARY_PATH", &installed.libraries);
    let ran = said(&mut run);
    assert!(ran.contains("ok"), "{ran}");
}

#[test]
fn the_example_shows_that_a_slow_replica_isnt_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    // Longer than a busy machine delays the fast one's answers.
    let slow = Does::Queue(Duration::from_millis(150));
    let fakes = [("slow", slow), ("fast", Does::Serve)].map(|(name, does)| Fake::start(dir.path(), name, 7, does));
    fakes.iter().for_each(|f| f.set(|s| s.size_bytes = 4 << 20));
    let (installed, program) = (Installed::into(&dir.path().join("usr")), dir.path().join("two_replicas"));
    installed.compile("examples/two_replicas.c", &program);
    let addresses: Vec<String> = fakes.iter().map(|f| f.address().to_string()).collect();
    let ran = said(Command::new(program).args(addresses).env("LD_LIBRARY_PATH", &installed.libraries));
    let p99 = |policy: &str| {
        let line = ran.lines().find_map(|l| l.strip_prefix(policy)).unwrap_or_else(|| panic!("{policy}: {ran}"));
        line.trim_end_matches("ms").parse::<f64>().unwrap()
    };
    assert!(p99("base: p99 ") >= 150.0 && p99("mitt+wait: p99 ") < p99("base: p99 "), "{ran}");
}
