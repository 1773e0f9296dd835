//! Tunes anything that a shell command can set and measure.

use crate::adapter::{Adapter, AdapterError, Run};
use crate::file::AdapterSpec;
use crate::otlp::otlp;
use crate::record::read_run;
use crate::source::{between, prometheus_buckets};
use crate::space::{Setting, Space};
use plimsoll_base::Span;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Runs an adapter's commands, each in a process group of its own that ends with it.
pub struct Shell {
    spec: AdapterSpec,
    space: Space,
    /// What the commands of `measure` see of the setting.
    applied: Option<Setting>,
}

/// What a command may print.
const OUTPUT_MAX: u64 = 1 << 30;
/// How often a running command is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// What a command that has ended may leave its output open for: a server that it started may hold it for ever.
const DRAIN: Duration = Duration::from_millis(300);

impl Shell {
    /// Runs nothing yet.
    pub fn new(spec: AdapterSpec, space: Space) -> Shell {
        Shell { spec, space, applied: None }
    }

    fn filled(&self, command: &str, setting: Option<&Setting>, time: Span) -> String {
        let seconds = time.as_nanos() as f64 / 1e9;
        let mut text = command.replace("{seconds}", &seconds.to_string());
        if let Some(s) = setting {
            for (name, value) in self.space.values(s) {
                text = text.replace(&format!("{{{name}}}"), &quoted(value));
            }
        }
        text
    }

    fn measure_histograms(&self, time: Span) -> Result<Run, AdapterError> {
        let p = self.spec.prometheus.as_ref().expect("a spec has one of the two");
        let told = |e: crate::record::BadRecord| AdapterError(format!("`{}`: {e}", p.command));
        let scrape = || run(&p.command, limit(self.spec.timeout));
        let before = scrape()?;
        std::thread::sleep(limit(time));
        let after = scrape()?;
        let mut measured = Run::new();
        for (node, h) in &p.node {
            let labels: Vec<(&str, &str)> = h.labels.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
            let read = |text: &str| prometheus_buckets(text, &h.metric, &labels);
            // A series may begin with its first request: it was empty before.
            let earlier = read(&before).unwrap_or_default();
            let observations = between(&earlier, &read(&after).map_err(told)?).map_err(told)?;
            measured.insert(node.clone(), observations);
        }
        Ok(measured)
    }
}

impl Adapter for Shell {
    fn apply(&mut self, setting: &Setting) -> Result<(), AdapterError> {
        let command = self.filled(&self.spec.apply, Some(setting), Span::ZERO);
        run(&command, limit(self.spec.timeout))?;
        self.applied = Some(setting.clone());
        Ok(())
    }

    /// The command's output is `request,node,value` lines, or an OTLP/JSON export (it begins with a brace).
    fn measure(&mut self, time: Span) -> Result<Run, AdapterError> {
        let Some(measure) = &self.spec.measure else { return self.measure_histograms(time) };
        let command = self.filled(measure, self.applied.as_ref(), time);
        let text = run(&command, limit(self.spec.timeout + time))?;
        let read = if text.trim_start().starts_with('{') { otlp(&text) } else { read_run(&text) };
        read.map_err(|e| AdapterError(format!("`{command}`: {e}")))
    }
}

fn limit(span: Span) -> Duration {
    Duration::from_nanos(span.as_nanos())
}

/// One word for a shell, whatever is in it.
fn quoted(value: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-+:/=,".contains(c);
    if !value.is_empty() && value.chars().all(is_plain) {
        value.into()
    } else {
        format!("'{}'", value.replace('\'', "'\\''"))
    }
}

/// Runs a command to its end and returns what it printed.
fn run(command: &str, limit: Duration) -> Result<String, AdapterError> {
    let failed = |what: String| AdapterError(format!("`{command}`: {what}"));
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = shell.spawn().map_err(|e| failed(e.to_string()))?;
    let out = collect(child.stdout.take().expect("piped"));
    let err = collect(child.stderr.take().expect("piped"));
    let started = Instant::now();
    let status = loop {
        match child.try_wait().map_err(|e| failed(e.to_string()))? {
            Some(status) => break status,
            None if started.elapsed() >= limit => {
                end(&mut child);
                return Err(failed(format!("it hangs: stopped after {limit:?} (adapter.timeout)")));
            }
            None => std::thread::sleep(LOOK_EVERY),
        }
    };
    let out = out.recv_timeout(DRAIN).unwrap_or_default();
    if !status.success() {
        let said = String::from_utf8_lossy(&err.recv_timeout(DRAIN).unwrap_or_default()).trim().to_string();
        let how = status.code().map_or("it was killed".to_string(), |c| format!("it failed with status {c}"));
        return Err(failed(if said.is_empty() { how } else { format!("{how}: {said}") }));
    }
    String::from_utf8(out).map_err(|_| failed("it printed what isn't text".into()))
}

/// Kills the command and all that it started, and waits for it.
fn end(child: &mut Child) {
    if let Some(group) = rustix::process::Pid::from_raw(child.id() as i32) {
        // It may have ended meanwhile: then there is nothing to kill.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.wait();
}

fn collect(stream: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if stream.take(OUTPUT_MAX).read_to_end(&mut bytes).is_ok() {
            // Nobody waits for it any more if the command's time was over.
            let _ = sender.send(bytes);
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::Parameter;

    fn shell(apply: &str, measure: &str) -> Shell {
        shell_within(Span::from_secs(30), apply, measure)
    }

    fn shell_within(timeout: Span, apply: &str, measure: &str) -> Shell {
        let values = vec!["1".into(), "it's 2; exit 3".into()];
        let space = Space::new(vec![Parameter { name: "a".into(), values, moves: vec![] }]).unwrap();
        let spec = AdapterSpec {
            apply: apply.into(),
            measure: Some(measure.into()),
            prometheus: None,
            timeout,
            profile_time: Span::from_secs(1),
        };
        Shell::new(spec, space)
    }

    #[test]
    fn commands_get_their_values_and_give_theirs() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("set");
        let mut s = shell(&format!("printf %s {{a}} > {}", file.display()), "echo 1,r,{seconds}");
        s.apply(&Setting(vec![1])).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "it's 2; exit 3", "a value is one word");
        assert_eq!(s.measure(Span::from_millis(1500)).unwrap()["r"][0].value, 1.5);
    }

    #[test]
    fn failures_and_hangs_are_told() {
        let told = |apply: &str| shell(apply, "true").apply(&Setting(vec![0])).unwrap_err().to_string();
        assert!(told("echo no disk >&2; exit 3 # {a}").contains("failed with status 3: no disk"));
        assert!(told("kill -9 $$ # {a}").contains("it was killed"));
        let started = Instant::now();
        let mut hanging = shell_within(Span::from_millis(700), "sleep 60 & sleep 60 # {a}", "true");
        let hang = hanging.apply(&Setting(vec![0])).unwrap_err().to_string();
        assert!(hang.contains("it hangs: stopped after 700ms"), "{hang}");
        assert!(started.elapsed() < Duration::from_secs(30));
        // A server that stays and keeps the output open is no hang.
        assert!(shell("sleep 3 & # {a}", "true").apply(&Setting(vec![0])).is_ok());
        let e = shell("true", "echo nothing").measure(Span::ZERO).unwrap_err().to_string();
        assert!(e.contains("line 1: `nothing` isn't"), "{e}");
    }

    #[test]
    fn histograms_are_read_before_and_after() {
        let dir = tempfile::tempdir().unwrap();
        let count = dir.path().join("n");
        std::fs::write(&count, "0").unwrap();
        let script = format!(
            "n=$(($(cat {0}) + 50)); echo $n > {0}; echo \"x_bucket{{op=\\\"read\\\",le=\\\"0.01\\\"}} $n\"; echo \"x_bucket{{op=\\\"read\\\",le=\\\"+Inf\\\"}} $n\"",
            count.display()
        );
        let mut s = shell("true", "true");
        let histogram =
            crate::file::Histogram { metric: "x".into(), labels: [("op".to_string(), "read".to_string())].into() };
        s.spec.measure = None;
        s.spec.prometheus =
            Some(crate::file::Prometheus { command: script, node: [("r".to_string(), histogram)].into() });
        let run = s.measure(Span::from_millis(1)).unwrap();
        assert_eq!(run["r"].iter().map(|o| o.weight).sum::<f64>(), 50.0);
    }
}
