//! A Prometheus of our own that scrapes nodes once a second, ended by its process id.

use super::shaped::{Ended, free_port, until};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

pub struct Prometheus {
    port: u16,
    _child: Ended,
}

impl Prometheus {
    /// Over the control addresses of nodes, with a file of rules. It keeps what it has in `dir`.
    pub fn start(dir: &Path, nodes: &[&str], rules: &Path) -> Prometheus {
        let scrape = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [\"{}\"]\nscrape_configs:\n  - job_name: plimsoll\n    \
             static_configs: [{{ targets: {nodes:?} }}]\n",
            rules.display()
        );
        std::fs::write(dir.join("prometheus.yml"), scrape).unwrap();
        let port = free_port();
        let mut program = Command::new("prometheus");
        program.arg(format!("--config.file={}/prometheus.yml", dir.display()));
        program.arg(format!("--storage.tsdb.path={}/tsdb", dir.display()));
        program.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let child = program.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Prometheus { port, _child: Ended(child.expect("prometheus (`make test` installs it)")) }
    }

    /// The body of an answer of its API; null while it starts.
    fn get(&self, path: &str) -> Value {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return Value::Null };
        let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body).unwrap_or(Value::Null)
    }

    /// The answer to an expression.
    pub fn ask(&self, expression: &str) -> Value {
        let encoded: String = expression.bytes().map(|b| format!("%{b:02X}")).collect();
        self.get(&format!("/api/v1/query?query={encoded}"))
    }

    /// The labels of the alerts that fire; `None` while it starts.
    pub fn firing(&self) -> Option<Vec<Value>> {
        let answer = self.get("/api/v1/alerts");
        let all = answer["data"]["alerts"].as_array()?;
        Some(all.iter().filter(|a| a["state"] == "firing").map(|a| a["labels"].clone()).collect())
    }

    /// True if an alert fires that has these labels.
    pub fn has_alert(&self, name: &str, labels: &[(&str, &str)]) -> bool {
        let is_meant = |l: &Value| l["alertname"] == name && labels.iter().all(|(label, text)| l[label] == *text);
        self.firing().is_some_and(|all| all.iter().any(is_meant))
    }

    /// Waits until an alert fires that has these labels.
    #[track_caller]
    pub fn await_alert(&self, name: &str, labels: &[(&str, &str)]) {
        until(&format!("{name} {labels:?} doesn't fire"), || self.has_alert(name, labels));
    }
}
