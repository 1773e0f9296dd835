//! Database servers whose data lie on a mounted volume.

use super::mount::Mounted;
use super::ok;
use super::shaped::{Ended, until};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn account(name: &str) -> (u32, u32) {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
    let line = passwd.lines().find(|l| l.starts_with(&format!("{name}:"))).expect("the package's account");
    let field = |i| line.split(':').nth(i).unwrap().parse().unwrap();
    (field(2), field(3))
}

/// The data folder of a new MariaDB, on the volume.
pub fn installed(dir: &Path, volume: &Mounted) -> String {
    let (uid, gid) = account("mysql");
    let fresh = dir.join("fresh");
    std::fs::create_dir(&fresh).unwrap();
    chown(&fresh, Some(uid), Some(gid)).unwrap();
    let at = |p: &Path| p.display().to_string();
    let out = Command::new("mariadb-install-db")
        .args([
            "--no-defaults",
            &format!("--datadir={}/data", at(&fresh)),
            &format!("--tmpdir={}", at(&fresh)),
            "--skip-test-db",
        ])
        .args(["--auth-root-authentication-method=normal", "--innodb-log-file-size=4M"])
        .uid(uid)
        .gid(gid)
        .current_dir("/")
        .output()
        .expect("MariaDB (`make test` installs it)");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let data = at(&volume.dir.join("data"));
    ok("cp", &["-a", &at(&fresh.join("data")), &data]);
    data
}

/// A database server on a mounted volume.
pub enum Database {
    MariaDb { data: String },
    PostgreSql { data: String, bin: PathBuf },
}

impl Database {
    pub fn maria_db(dir: &Path, volume: &Mounted) -> Database {
        Database::MariaDb { data: installed(dir, volume) }
    }

    pub fn postgre_sql(volume: &Mounted) -> Database {
        let versions = std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL (`make test` installs it)");
        let bin = versions.flatten().map(|v| v.path().join("bin")).max().expect("a version of PostgreSQL");
        let (uid, gid) = account("postgres");
        let data = volume.dir.join("data");
        std::fs::create_dir(&data).unwrap();
        chown(&data, Some(uid), Some(gid)).unwrap();
        let data = data.display().to_string();
        let mut initdb = Command::new(bin.join("initdb"));
        initdb.args(["-D", &data, "-A", "trust", "-U", "root", "--no-sync", "--no-locale"]);
        let made = initdb.uid(uid).gid(gid).current_dir("/").output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Database::PostgreSql { data, bin }
    }

    /// Runs until it is dropped or [`Database::stop`]ped; its socket is in `dir`.
    pub fn start(&self, dir: &Path) -> Ended {
        let socket = format!("{}/sock", dir.display());
        let (user, mut server) = match self {
            Database::MariaDb { data } => {
                let mut c = Command::new("mariadbd");
                c.args([
                    "--no-defaults",
                    "--skip-networking",
                    "--innodb-buffer-pool-size=8M",
                    "--innodb-log-file-size=4M",
                ]);
                c.args([format!("--datadir={data}"), format!("--socket={socket}")]);
                ("mysql", c)
            }
            Database::PostgreSql { data, bin } => {
                let mut c = Command::new(bin.join("postgres"));
                c.args(["-D", data, "-c", "listen_addresses=", "-c", "shared_buffers=1MB", "-c"]);
                c.arg(format!("unix_socket_directories={}", dir.display()));
                ("postgres", c)
            }
        };
        let (uid, gid) = account(user);
        let server = server.uid(uid).gid(gid).current_dir("/").stdout(Stdio::null()).stderr(Stdio::null());
        let server = Ended(server.spawn().expect("the server (`make test` installs it)"));
        until("the database is up", || self.ask(dir, "SELECT 1").status.success());
        server
    }

    fn ask(&self, dir: &Path, sql: &str) -> Output {
        let mut c = match self {
            Database::MariaDb { .. } => {
                let mut c = Command::new("mariadb");
                c.args([
                    "--no-defaults",
                    "-uroot",
                    &format!("--socket={}/sock", dir.display()),
                    "-N",
                    "-e",
                    sql,
                    "mysql",
                ]);
                c
            }
            Database::PostgreSql { .. } => {
                let mut c = Command::new("psql");
                c.args(["-h", dir.to_str().unwrap(), "-U", "root", "-d", "postgres", "-tA", "-c", sql]);
                c
            }
        };
        c.output().expect("the database's client (`make test` installs it)")
    }

    /// The output of a statement, which must succeed.
    pub fn sql(&self, dir: &Path, sql: &str) -> String {
        let out = self.ask(dir, sql);
        assert!(out.status.success(), "{sql}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).trim().to_string()
    }

    /// Ends the server in order.
    pub fn stop(&self, mut server: Ended) {
        let pid = rustix::process::Pid::from_child(&server.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(server.0.wait().unwrap().success(), "it ends in order");
    }
}
