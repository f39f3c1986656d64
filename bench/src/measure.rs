//! Kinds of work, measured in turns.
//!
//! A machine that others use is slow for a while and then fast again. Entrants that take turns meet the same weather, so a
//! quotient of theirs says something where a time of one says nothing. How far to trust it is told by resampling: what the
//! quotient would have been, had some rounds been seen twice and others not at all.

use std::{
    collections::BTreeMap,
    fmt,
    pin::Pin,
    time::{Duration, Instant},
};

use serde::Serialize;

/// Somebody who does the work.
pub struct Entrant<'a> {
    name: &'static str,
    work: Box<dyn Fn() -> Work<'a> + 'a>,
    /// Behind each of its turns.
    pause: Duration,
}

type Work<'a> = Pin<Box<dyn Future<Output = f64> + 'a>>;

/// What each entrant's work cost, round by round; as often in each round.
#[derive(Debug, Clone)]
pub struct Samples {
    seconds: BTreeMap<&'static str, Vec<f64>>,
    rounds: usize,
}

/// What it cost where each worked several times in a row when its turn came.
#[derive(Debug, Clone)]
pub struct Rows {
    /// All of it.
    pub all: Samples,
    /// The first of each row, which finds the processor's caches full of what the others did.
    pub first: Samples,
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
    /// How many turns each entrant had.
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
            pause: Duration::ZERO,
        }
    }

    /// The same, with a pause behind each turn, for what it leaves to the kernel to clear up: not at the cost of who comes next.
    #[must_use]
    pub fn settling(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }
}

impl fmt::Debug for Entrant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Entrant").field(&self.name).finish()
    }
}

/// Lets each work once per round, in an order that is another one each time: whoever always came behind the same one would
/// always find what that one left, be it warm caches or work that is not done yet.
pub async fn take_turns(rounds: usize, entrants: &[Entrant<'_>]) -> Samples {
    take_rows(rounds, 1, entrants).await.all
}

/// The same with `length` times in a row for each. What is short takes longer by itself than again: where a dozen programs
/// take turns on one machine, each evicts the others from its caches, which tells more of the company than of the work.
pub async fn take_rows(rounds: usize, length: usize, entrants: &[Entrant<'_>]) -> Rows {
    // The first time is paid for by what it finds cold.
    for entrant in entrants {
        (entrant.work)().await;
    }
    let (mut all, mut first) = (Samples::of(rounds), Samples::of(rounds));
    let mut order: Vec<_> = entrants.iter().collect();
    let mut random = Random(1);
    for _ in 0..rounds {
        random.shuffle(&mut order);
        for entrant in &order {
            for place in 0..length {
                let cost = (entrant.work)().await;
                all.note(entrant.name, cost);
                if place == 0 {
                    first.note(entrant.name, cost);
                }
            }
            if !entrant.pause.is_zero() {
                tokio::time::sleep(entrant.pause).await;
            }
        }
    }
    Rows { all, first }
}

// === impl Samples ===

impl Samples {
    fn of(rounds: usize) -> Self {
        let seconds = BTreeMap::new();
        Self { seconds, rounds }
    }

    fn note(&mut self, name: &'static str, cost: f64) {
        self.seconds.entry(name).or_default().push(cost);
    }

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
        let pick = |all: &Vec<f64>| {
            let each = all.len() / self.rounds;
            let of_round = |&round: &usize| &all[round * each..][..each];
            picks.iter().flat_map(of_round).copied().collect()
        };
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

    fn shuffle<T>(&mut self, all: &mut [T]) {
        for last in (1..all.len()).rev() {
            all.swap(last, self.below(last + 1));
        }
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
        let samples = take_turns(100, &[entrant("a"), entrant("b"), entrant("c")]).await;
        let turns = turns.borrow();
        let rounds: Vec<&str> = (0..turns.len() / 3).map(|round| &turns[3 * round..][..3]).collect();
        assert_eq!(rounds.len(), 101, "with the one that does not count");
        for order in ["abc", "acb", "bac", "bca", "cab", "cba"] {
            assert!(
                rounds.iter().filter(|round| **round == order).count() > 5,
                "{order} of {rounds:?}"
            );
        }
        assert_eq!(samples.seconds["a"].len(), 100);
    }

    #[tokio::test]
    async fn rows_are_told_as_a_whole_and_by_their_first() {
        // Twice as long whenever the other one has worked before.
        let last = std::cell::Cell::new("");
        let entrant = |name: &'static str, cost: f64| {
            let last = &last;
            Entrant::telling(name, move || async move {
                match last.replace(name) == name {
                    true => cost,
                    false => 2.0 * cost,
                }
            })
        };
        let rows = take_rows(10, 4, &[entrant("a", 1.0), entrant("b", 3.0)]).await;
        assert_eq!((rows.all.seconds["a"].len(), rows.first.seconds["a"].len()), (40, 10));
        assert_eq!(rows.all.ratio("b", "a").value, 3.0);
        // An order may end with whom the next one begins with.
        assert!(rows.first.seconds["b"].iter().filter(|cost| **cost == 6.0).count() >= 5);
        assert!(rows.all.seconds["b"].chunks(4).all(|row| row[1..] == [3.0; 3]));
    }
}
