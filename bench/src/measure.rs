//! Kinds of work, measured in turns.
//!
//! A machine that others use is slow for a while and then fast again. Entrants that take turns meet the same weather, so a
//! quotient of theirs says something where a time of one says nothing. How far to trust it is told by resampling: what the
//! quotient would have been, had some rounds been seen twice and others not at all.

use std::{collections::BTreeMap, fmt, pin::Pin, time::Instant};

use serde::Serialize;

/// Somebody who does the work.
pub struct Entrant<'a> {
    name: &'static str,
    work: Box<dyn Fn() -> Work<'a> + 'a>,
}

type Work<'a> = Pin<Box<dyn Future<Output = f64> + 'a>>;

/// What each entrant's work cost, round by round.
#[derive(Debug, Clone)]
pub struct Samples {
    seconds: BTreeMap<&'static str, Vec<f64>>,
    rounds: usize,
}

/// Samples, or one resampling of them, from which a figure is taken.
#[derive(Debug)]
pub struct Costs(BTreeMap<&'static str, Vec<f64>>);

/// A figure, and the interval in which 95 of 100 resamplings have it.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Estimate {
    /// The figure.
    pub value: f64,
    /// Where the interval begins.
    pub low: f64,
    /// Where it ends.
    pub high: f64,
    /// How often each entrant worked.
    pub rounds: usize,
}

/// A generator of numbers that are random enough to pick rounds with, and the same in every run.
struct Random(u64);

const RESAMPLINGS: usize = 1_000;

// === impl Entrant ===

impl<'a> Entrant<'a> {
    /// An entrant all of whose work counts.
    pub fn new<F: Future<Output = ()> + 'a>(name: &'static str, work: impl Fn() -> F + 'a) -> Self {
        Self::telling(name, move || {
            let work = work();
            async {
                let begun = Instant::now();
                work.await;
                begun.elapsed().as_secs_f64()
            }
        })
    }

    /// An entrant that says itself how many seconds count, because it also has to prepare or to clean up.
    pub fn telling<F: Future<Output = f64> + 'a>(name: &'static str, work: impl Fn() -> F + 'a) -> Self {
        Self {
            name,
            work: Box::new(move || Box::pin(work())),
        }
    }
}

impl fmt::Debug for Entrant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Entrant").field(&self.name).finish()
    }
}

/// Lets each work once per round, each as often at the front as the others.
pub async fn take_turns(rounds: usize, entrants: &[Entrant<'_>]) -> Samples {
    // The first time is paid for by what it finds cold.
    for entrant in entrants {
        (entrant.work)().await;
    }
    let mut seconds: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    for round in 0..rounds {
        for turn in 0..entrants.len() {
            let entrant = &entrants[(round + turn) % entrants.len()];
            let cost = (entrant.work)().await;
            seconds.entry(entrant.name).or_default().push(cost);
        }
    }
    Samples { seconds, rounds }
}

// === impl Samples ===

impl Samples {
    /// A figure of these samples.
    pub fn estimate(&self, figure: impl Fn(&Costs) -> f64) -> Estimate {
        estimate(&[self], |costs| figure(&costs[0]))
    }

    /// How often the cost of `one` is that of `other`, by their medians.
    #[must_use]
    pub fn ratio(&self, one: &str, other: &str) -> Estimate {
        self.estimate(|costs| costs.median(one) / costs.median(other))
    }

    /// The same for what they cost above `base`.
    #[must_use]
    pub fn ratio_above(&self, base: &str, one: &str, other: &str) -> Estimate {
        self.estimate(|costs| {
            let above = |name| costs.median(name) - costs.median(base);
            above(one) / above(other)
        })
    }

    fn resampled(&self, random: &mut Random) -> Costs {
        let picks: Vec<usize> = (0..self.rounds).map(|_| random.below(self.rounds)).collect();
        // The same rounds of all of them: what they met together stays together.
        let pick = |all: &Vec<f64>| picks.iter().map(|&round| all[round]).collect();
        Costs::sorted(self.seconds.iter().map(|(&name, all)| (name, pick(all))).collect())
    }
}

/// A figure of several sets of samples.
pub fn estimate(sets: &[&Samples], figure: impl Fn(&[Costs]) -> f64) -> Estimate {
    let whole: Vec<Costs> = sets.iter().map(|set| Costs::sorted(set.seconds.clone())).collect();
    let mut random = Random(1);
    let mut figures: Vec<f64> = (0..RESAMPLINGS)
        .map(|_| figure(&sets.iter().map(|set| set.resampled(&mut random)).collect::<Vec<_>>()))
        .collect();
    figures.sort_by(f64::total_cmp);
    Estimate {
        value: figure(&whole),
        low: figures[RESAMPLINGS / 40],
        high: figures[RESAMPLINGS - 1 - RESAMPLINGS / 40],
        rounds: sets.iter().map(|set| set.rounds).min().unwrap_or_default(),
    }
}

// === impl Costs ===

impl Costs {
    fn sorted(mut seconds: BTreeMap<&'static str, Vec<f64>>) -> Self {
        seconds.values_mut().for_each(|all| all.sort_by(f64::total_cmp));
        Self(seconds)
    }

    /// Half of the times it cost no more than this.
    #[must_use]
    pub fn median(&self, name: &str) -> f64 {
        self.quantile(name, 0.5)
    }

    /// In this part of all times it cost no more than this.
    ///
    /// # Panics
    /// When nobody of that name took part.
    #[must_use]
    pub fn quantile(&self, name: &str, part: f64) -> f64 {
        let Some(all) = self.0.get(name) else {
            panic!("{name} did not take part")
        };
        let at = (part * all.len() as f64) as usize;
        all[at.min(all.len() - 1)]
    }
}

// === impl Estimate ===

impl Estimate {
    /// A figure that was read off, not estimated.
    #[must_use]
    pub fn exact(value: f64) -> Self {
        Self {
            value,
            low: value,
            high: value,
            rounds: 1,
        }
    }
}

// === impl Random ===

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(ours: &[f64], limit: &[f64]) -> Samples {
        Samples {
            seconds: [("ours", ours.to_vec()), ("limit", limit.to_vec())].into(),
            rounds: ours.len(),
        }
    }

    #[test]
    fn an_interval_holds_the_figure_and_narrows_with_agreement() {
        let even = samples(&[2.0; 20], &[1.0; 20]).ratio("ours", "limit");
        assert_eq!((even.low, even.value, even.high), (2.0, 2.0, 2.0));
        let wild: Vec<f64> = (1..=20).map(f64::from).collect();
        let wild = samples(&wild, &[1.0; 20]).ratio("ours", "limit");
        assert!(wild.low < wild.value && wild.value < wild.high, "{wild:?}");
    }

    #[test]
    fn what_is_paid_by_all_can_be_left_out() {
        let mut all = samples(&[5.0; 9], &[3.0; 9]);
        all.seconds.insert("bare", vec![1.0; 9]);
        assert_eq!(all.ratio_above("bare", "ours", "limit").value, 2.0);
    }

    #[tokio::test]
    async fn everybody_works_once_in_each_round() {
        let turns = std::cell::RefCell::new(String::new());
        let entrant = |name: &'static str| Entrant::new(name, || async { turns.borrow_mut().push_str(name) });
        let samples = take_turns(3, &[entrant("a"), entrant("b")]).await;
        assert_eq!(*turns.borrow(), "ab".to_owned() + "ab" + "ba" + "ab");
        assert_eq!(samples.seconds["a"].len(), 3);
    }
}
