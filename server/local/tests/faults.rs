//! A server that ends at any moment leaves each sandbox whole or gone.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

#[path = "support/world.rs"]
mod world;

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher as _, Hasher as _},
    sync::Arc,
    thread,
    time::Duration,
};

use sandgate_local::Local;
use sandgate_proto::v1::SandboxState;
use sandgate_provider::Provider as _;
use tokio::runtime::{Builder, Runtime};

use self::world::{World, parse, settings, wanted};

const ROUNDS: u32 = 40;

/// Small and seeded: what failed once can be had again.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn threads() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// Does one thing to the sandbox, for as long as it is let.
async fn disturb(local: Arc<Local>, what: u64) {
    let name = parse("a");
    match what {
        0 => {
            let begun = local.create(wanted("a")).await.unwrap();
            let _ = local.ready(&name, &begun.sandbox.uid).await;
        }
        1 => drop(local.suspend(&name, None, Duration::from_millis(50)).await),
        2 => drop(local.resume(&name).await),
        _ => drop(local.delete(&name, None, None).await),
    }
}

#[test]
fn a_server_that_is_cut_off_anywhere_leaves_it_whole_or_gone() {
    let seed = RandomState::new().build_hasher().finish() | 1;
    eprintln!("seed {seed}");
    let mut random = Random(seed);
    let outer = threads();
    let mut world = outer.block_on(World::new());
    for round in 0..ROUNDS {
        outer.block_on(world.local.close());
        // All of this server is in threads of its own, which end in the middle of whatever they do.
        let server = threads();
        let local = server.block_on(Local::open(settings(&world.state()))).unwrap();
        for _ in 0..=random.below(2) {
            server.spawn(disturb(Arc::clone(&local), random.below(4)));
        }
        let pause = Duration::from_micros(random.below(40_000));
        thread::sleep(pause);
        server.shutdown_background();
        drop(local);

        world.local = outer.block_on(Local::open(settings(&world.state()))).unwrap();
        outer.block_on(async {
            let made = world.create("a").await;
            let made = made.unwrap_or_else(|refusal| panic!("round {round} after {pause:?}: {refusal}"));
            assert_eq!(made.state(), SandboxState::Ready);
            let said = world.run("a", &format!("e{round}"), "echo $FROM").await;
            assert_eq!(said, "template\n", "round {round} after {pause:?}");
        });
    }
    outer.block_on(async {
        world.local.delete(&parse("a"), None, None).await.unwrap();
        world.assert_empty().await;
        world.local.close().await;
    });
}
