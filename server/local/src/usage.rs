//! What a sandbox uses: read from its cgroups and its disk. What can't be read is left out.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use sandgate_monitor::{Cgroups, Limits, disk_bytes, layout, now_ms};
use sandgate_proto::v1::Usage;
use sandgate_provider::limits::{duration, timestamp};

/// Above this, v1 means "no limit": the largest number of whole pages.
const V1_UNLIMITED: u64 = 1 << 62;

/// Where to measure.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gauge {
    pub(crate) cgroups: Cgroups,
    pub(crate) limits: Limits,
}

// === impl Gauge ===

impl Gauge {
    /// Measures. Blocks for as long as it takes to count the disk's files.
    pub(crate) fn measure(&self, dir: &Path) -> Usage {
        Usage {
            measured_at: Some(timestamp(now_ms())),
            cpu_time: self.cpu_time().map(duration),
            memory_bytes: self.number("memory", "memory.usage_in_bytes", "memory.current"),
            memory_limit_bytes: self
                .number("memory", "memory.limit_in_bytes", "memory.max")
                .filter(|limit| *limit < V1_UNLIMITED),
            disk_bytes: used_disk(dir),
            disk_limit_bytes: self.limits.disk.filter(|_| image(dir).exists()),
            processes: self.small("pids.current"),
            processes_limit: self.small("pids.max"),
            cpu_limit_millis: self.cpu_limit(),
        }
    }

    fn cpu_time(&self) -> Option<Duration> {
        if let Some(dir) = self.cgroups.v1.get("cpuacct") {
            return number(&dir.join("cpuacct.usage")).map(Duration::from_nanos);
        }
        let text = fs::read_to_string(self.cgroups.unified.as_ref()?.join("cpu.stat")).ok()?;
        let micros = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
        micros.trim().parse().ok().map(Duration::from_micros)
    }

    fn cpu_limit(&self) -> Option<u32> {
        let (quota, period) = if let Some(dir) = self.cgroups.v1.get("cpu") {
            (
                number(&dir.join("cpu.cfs_quota_us"))?,
                number(&dir.join("cpu.cfs_period_us"))?,
            )
        } else {
            let text = fs::read_to_string(self.cgroups.unified.as_ref()?.join("cpu.max")).ok()?;
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.parse().ok()?, period.parse().ok()?)
        };
        u32::try_from(quota.checked_mul(1000)?.checked_div(period)?).ok()
    }

    fn small(&self, file: &str) -> Option<u32> {
        self.number("pids", file, file).and_then(|n| u32::try_from(n).ok())
    }

    fn number(&self, controller: &str, v1: &str, v2: &str) -> Option<u64> {
        match (self.cgroups.v1.get(controller), &self.cgroups.unified) {
            (Some(dir), _) => number(&dir.join(v1)),
            (None, Some(dir)) => number(&dir.join(v2)),
            (None, None) => None,
        }
    }
}

/// `max` and negative numbers mean that there is no limit.
fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn image(dir: &Path) -> PathBuf {
    dir.join(layout::IMAGE)
}

fn used_disk(dir: &Path) -> Option<u64> {
    match fs::symlink_metadata(image(dir)) {
        Ok(image) => Some(image.blocks() * 512),
        Err(_) => disk_bytes(&dir.join(layout::DISK).join("upper")).ok().flatten(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).unwrap();
        for (file, text) in files {
            fs::write(dir.join(file), text).unwrap();
        }
    }

    #[test]
    fn both_kinds_of_cgroups_tell_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        write(
            &at("m"),
            &[("memory.usage_in_bytes", "4096\n"), ("memory.limit_in_bytes", "8192\n")],
        );
        write(&at("p"), &[("pids.current", "3\n"), ("pids.max", "64\n")]);
        write(
            &at("c"),
            &[("cpu.cfs_quota_us", "150000\n"), ("cpu.cfs_period_us", "100000\n")],
        );
        write(&at("a"), &[("cpuacct.usage", "1500000000\n")]);
        let v1 = [("memory", "m"), ("pids", "p"), ("cpu", "c"), ("cpuacct", "a")];
        let mut gauge = Gauge::default();
        gauge.cgroups.v1 = v1.into_iter().map(|(c, d)| (c.to_owned(), at(d))).collect();
        let first = gauge.measure(dir.path());

        let files = [
            ("memory.current", "4096\n"),
            ("memory.max", "8192\n"),
            ("pids.current", "3\n"),
            ("pids.max", "64\n"),
            ("cpu.max", "150000 100000\n"),
            ("cpu.stat", "usage_usec 1500000\nuser_usec 1\n"),
        ];
        write(&at("unified"), &files);
        let mut gauge = Gauge::default();
        gauge.cgroups.unified = Some(at("unified"));
        let mut second = gauge.measure(dir.path());
        second.measured_at = first.measured_at;
        assert_eq!(first, second);
        assert_eq!(first.cpu_limit_millis, Some(1500));
        assert_eq!(first.memory_limit_bytes, Some(8192));
    }

    #[test]
    fn no_limit_and_no_measure_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let unlimited = [
            ("memory.usage_in_bytes", "1"),
            ("memory.limit_in_bytes", "9223372036854771712"),
            ("pids.current", "1"),
            ("pids.max", "max"),
            ("cpu.cfs_quota_us", "-1"),
            ("cpu.cfs_period_us", "100000"),
        ];
        write(dir.path(), &unlimited);
        let mut gauge = Gauge::default();
        for controller in ["memory", "pids", "cpu"] {
            gauge.cgroups.v1.insert(controller.to_owned(), dir.path().to_owned());
        }
        let usage = gauge.measure(dir.path());
        assert_eq!(
            (
                usage.memory_limit_bytes,
                usage.processes_limit,
                usage.cpu_limit_millis,
                usage.cpu_time
            ),
            (None, None, None, None)
        );
        let usage = Gauge::default().measure(dir.path());
        assert_eq!((usage.memory_bytes, usage.processes), (None, None));
        assert_eq!(usage.disk_bytes, Some(0));
    }
}
