//! Uids of the host, a range for each sandbox, so that what one leaves behind or is charged for is never another's.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use sandgate_monitor::UidRange;

use crate::settings::UidRanges;

/// Who has which range.
#[derive(Debug)]
pub(crate) struct Ranges {
    cut: UidRanges,
    given: Mutex<Given>,
}

#[derive(Debug, Default)]
struct Given {
    /// How many hold each range: records of another configuration may overlap.
    holders: BTreeMap<u32, u32>,
    /// Where to look first: one that was just given back is used last.
    next: u32,
}

/// A range in use, until this is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    ranges: Arc<Ranges>,
    range: UidRange,
}

// === impl Ranges ===

impl Ranges {
    pub(crate) fn new(cut: UidRanges) -> Arc<Self> {
        Arc::new(Self {
            cut,
            given: Mutex::default(),
        })
    }

    /// A range that nobody has. `None`: all are in use.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Lease> {
        let mut given = self.given();
        let count = self.cut.count;
        let mut candidates = (0..count).map(|i| (given.next + i) % count.max(1));
        let index = candidates.find(|index| !given.holders.contains_key(index))?;
        given.holders.insert(index, 1);
        given.next = (index + 1) % count;
        Some(Lease {
            ranges: Arc::clone(self),
            range: UidRange {
                first: self.cut.first + index * self.cut.size,
                count: self.cut.size,
            },
        })
    }

    /// Notes a range that a sandbox on disk has.
    pub(crate) fn note(self: &Arc<Self>, range: UidRange) -> Lease {
        let mut given = self.given();
        for index in self.touched(range) {
            *given.holders.entry(index).or_default() += 1;
        }
        Lease {
            ranges: Arc::clone(self),
            range,
        }
    }

    /// The indices of ranges that overlap.
    fn touched(&self, range: UidRange) -> impl Iterator<Item = u32> + use<> {
        let (first, size) = (u64::from(self.cut.first), u64::from(self.cut.size.max(1)));
        let begin = u64::from(range.first).max(first);
        let end = u64::from(range.first) + u64::from(range.count);
        let count = u64::from(self.cut.count);
        let from = ((begin - first) / size).min(count);
        let to = end.saturating_sub(first).div_ceil(size).min(count);
        (from..to).filter_map(|index| u32::try_from(index).ok())
    }

    fn given(&self) -> MutexGuard<'_, Given> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Lease ===

impl Lease {
    pub(crate) fn range(&self) -> UidRange {
        self.range
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut given = self.ranges.given();
        for index in self.ranges.touched(self.range) {
            if let Some(holders) = given.holders.get_mut(&index) {
                *holders -= 1;
                if *holders == 0 {
                    given.holders.remove(&index);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(count: u32) -> Arc<Ranges> {
        Ranges::new(UidRanges {
            first: 1000,
            size: 10,
            count,
        })
    }

    #[test]
    fn no_two_have_the_same_and_one_given_back_is_used_last() {
        let ranges = ranges(3);
        let a = ranges.take().unwrap();
        let b = ranges.take().unwrap();
        assert_eq!((a.range().first, b.range().first), (1000, 1010));
        drop(a);
        let c = ranges.take().unwrap();
        let d = ranges.take().unwrap();
        assert_eq!((c.range().first, d.range().first), (1020, 1000));
        assert!(ranges.take().is_none());
        drop((b, c));
        assert_eq!(ranges.take().unwrap().range().first, 1010);
    }

    #[test]
    fn what_is_on_disk_is_kept_also_when_it_was_cut_otherwise() {
        let ranges = ranges(4);
        let odd = UidRange { first: 1005, count: 10 };
        let (first, again) = (ranges.note(odd), ranges.note(odd));
        drop(first);
        assert_eq!(ranges.take().unwrap().range().first, 1020);
        for elsewhere in [(0, 1000), (1040, 10), (u32::MAX, u32::MAX)] {
            let (first, count) = elsewhere;
            drop(ranges.note(UidRange { first, count }));
        }
        let held = [ranges.take().unwrap(), ranges.take().unwrap()];
        assert!(ranges.take().is_none());
        drop(again);
        assert_eq!(ranges.take().unwrap().range().first, 1000);
        drop(held);
    }

    #[test]
    fn the_default_fits_into_a_uid() {
        let cut = UidRanges::default();
        let last = u64::from(cut.first) + u64::from(cut.size) * u64::from(cut.count);
        assert!(last <= 0x8000_0000, "{last:x}");
    }
}
