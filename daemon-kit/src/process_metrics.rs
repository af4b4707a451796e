//! Resource usage of the process, under the names of Prometheus' client libraries.

use std::fs::File;
use std::io;
use std::sync::OnceLock;

use procfs::process::{LimitValue, Process};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use protocol::release::RELEASE;
use sha2::{Digest as _, Sha256};

/// SHA-256 of this process's program, lower-case hex. Empty if its file cannot be read.
static DIGEST: OnceLock<String> = OnceLock::new();

/// A registry of this process's own figures, read at each scrape. A figure that cannot be read is
/// omitted.
#[must_use]
pub fn registry() -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(ThisProcess));
    registry
}

/// A registry that also has `PROGRAM_build_info`, with release and digest of the program. The
/// digest is read once, on a thread of its own. Until it is known its label is empty.
#[must_use]
pub fn registry_of(program: &'static str) -> Registry {
    let mut registry = registry();
    registry.register_collector(Box::new(Build { program }));
    if DIGEST.get().is_none() {
        let hashing = || {
            DIGEST.get_or_init(own_digest);
        };
        let thread = std::thread::Builder::new().name("digest".to_owned());
        // Without a thread the label stays empty.
        drop(thread.spawn(hashing));
    }
    registry
}

fn own_digest() -> String {
    let mut hasher = Sha256::new();
    let copied = File::open("/proc/self/exe").and_then(|mut file| io::copy(&mut file, &mut hasher));
    if let Err(error) = copied {
        tracing::warn!(%error, "failed to read /proc/self/exe");
        return String::new();
    }
    let bytes = hasher.finalize();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[derive(Debug)]
struct Build {
    program: &'static str,
}

impl Collector for Build {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let name = format!("{}_build_info", self.program);
        let digest = DIGEST.get().map(String::as_str).unwrap_or_default();
        let one = ConstGauge::new(1_u64);
        let help = "Release and digest of the running program";
        let kind = one.metric_type();
        let mut family = encoder.encode_descriptor(&name, help, None, kind)?;
        let labels = [("version", RELEASE), ("sha256", digest)];
        one.encode(family.encode_family(&labels)?)
    }
}

#[derive(Debug)]
struct ThisProcess;

impl Collector for ThisProcess {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut page = Page(encoder);
        let Ok(process) = Process::myself() else {
            return Ok(());
        };
        if let Ok(stat) = process.stat() {
            let ticks_per_second = as_f64(procfs::ticks_per_second());
            let seconds = |ticks| as_f64(ticks) / ticks_per_second;
            let used = seconds(stat.utime + stat.stime);
            page.counter("cpu_seconds", "User and system CPU time", used)?;
            if let Ok(boot) = procfs::boot_time_secs() {
                let started = as_f64(boot) + seconds(stat.starttime);
                let help = "Start of the process, seconds since the epoch";
                page.gauge("start_time_seconds", help, started)?;
            }
            let size = as_f64(stat.vsize);
            page.gauge("virtual_memory_bytes", "Size of the address space", size)?;
            let resident = as_f64(stat.rss.saturating_mul(procfs::page_size()));
            page.gauge("resident_memory_bytes", "Resident memory", resident)?;
        }
        if let Ok(open) = process.fd_count() {
            let open = as_f64(u64::try_from(open).unwrap_or(u64::MAX));
            page.gauge("open_fds", "Open file descriptors", open)?;
        }
        if let Ok(limits) = process.limits() {
            let most = limit(limits.max_open_files.soft_limit);
            page.gauge("max_fds", "Limit of open file descriptors", most)?;
            let most = limit(limits.max_address_space.soft_limit);
            let help = "Limit of the address space";
            page.gauge("virtual_memory_max_bytes", help, most)?;
        }
        Ok(())
    }
}

struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    fn counter(&mut self, name: &str, help: &str, value: f64) -> Result<(), std::fmt::Error> {
        self.add(name, help, &ConstCounter::new(value))
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) -> Result<(), std::fmt::Error> {
        self.add(name, help, &ConstGauge::new(value))
    }

    fn add(
        &mut self,
        name: &str,
        help: &str,
        of: &impl EncodeMetric,
    ) -> Result<(), std::fmt::Error> {
        let name = format!("process_{name}");
        let encoder = self
            .0
            .encode_descriptor(&name, help, None, of.metric_type())?;
        of.encode(encoder)
    }
}

/// A limit as in Prometheus' libraries: the largest number stands for none.
fn limit(value: LimitValue) -> f64 {
    match value {
        LimitValue::Unlimited => as_f64(u64::MAX),
        LimitValue::Value(most) => as_f64(most),
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
const fn as_f64(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn figures_are_those_of_this_process() {
        let mut page = String::new();
        encode(&mut page, &registry()).expect("a string takes all");
        let value = |name: &str| -> f64 {
            let mut values = page.lines().filter_map(|line| {
                let value = line.strip_prefix(name)?.strip_prefix(' ')?;
                value.parse().ok()
            });
            values
                .next()
                .unwrap_or_else(|| panic!("no {name} in\n{page}"))
        };
        let resident = value("process_resident_memory_bytes");
        assert!(resident > 1e5 && resident < value("process_virtual_memory_bytes"));
        assert!(value("process_cpu_seconds_total") >= 0.0);
        let open = value("process_open_fds");
        assert!(open >= 3.0 && open < value("process_max_fds"));
        assert!(value("process_virtual_memory_max_bytes") > resident);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let age = now.expect("after the epoch").as_secs_f64() - value("process_start_time_seconds");
        assert!((-2.0..86_400.0).contains(&age), "{age}");
    }

    /// Requirement: B07
    #[test]
    fn build_info_names_release_and_digest_of_the_program() {
        let registry = registry_of("a_program");
        // The thread and this call initialize it once between them.
        let digest = DIGEST.get_or_init(own_digest);
        assert_eq!(digest.len(), 64, "{digest}");
        let mut page = String::new();
        encode(&mut page, &registry).expect("a string takes all");
        let line = format!("a_program_build_info{{version=\"{RELEASE}\",sha256=\"{digest}\"}} 1");
        assert!(page.lines().any(|found| found == line), "{line} in\n{page}");
    }
}
