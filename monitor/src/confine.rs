//! The last steps before the runtime begins: from here on, rights are only lost. All of it is inherited by every command.

use std::{io, os::fd::BorrowedFd};

use landlock::{
    ABI, Access as _, AccessFs, CompatLevel, Compatible as _, PathBeneath, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetStatus, Scope,
};
use rustix::{
    process::{Resource, Rlimit, getrlimit, setrlimit},
    thread::{
        CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
        set_capabilities, set_no_new_privs,
    },
};

use crate::{
    control::Failure,
    record::Limits,
    report::During as _,
    status::{Mechanism, mechanism},
};

/// What root inside keeps: a package manager works with it, and it reaches nothing outside.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::SETFCAP)
    // The runtime keeps this one to itself: whoever lacks it can't trace the runtime.
    .union(CapabilitySet::SETPCAP);

/// The newest that we know how to use; older kernels do less of it.
const LANDLOCK: ABI = ABI::V6;

/// Sets limits of each process.
pub(crate) fn limit_resources(limits: &Limits, by_uid: bool) -> Result<(), Failure> {
    let lower = |resource, wanted: u64| {
        let hard = getrlimit(resource).maximum.map_or(wanted, |hard| hard.min(wanted));
        setrlimit(
            resource,
            Rlimit {
                current: Some(hard),
                maximum: Some(hard),
            },
        )
    };
    let what = "set limits of processes";
    lower(Resource::Core, 0).needed_for(mechanism::RLIMITS, what)?;
    if let Some(open_files) = limits.open_files {
        lower(Resource::Nofile, open_files).needed_for(mechanism::RLIMITS, what)?;
    }
    // Counts what a uid of the host has; of no use against the host's root.
    if let Some(pids) = limits.pids.filter(|_| by_uid) {
        lower(Resource::Nproc, u64::from(pids)).needed_for(mechanism::RLIMITS, what)?;
    }
    Ok(())
}

/// Drops all capabilities but a few, for good.
pub(crate) fn drop_capabilities() -> Result<(), Failure> {
    let what = "drop capabilities";
    let failed = mechanism::CAPABILITIES;
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if KEPT.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            // There is none of that number, nor of a higher one.
            Err(rustix::io::Errno::INVAL) => break,
            dropped => dropped.needed_for(failed, what)?,
        }
    }
    clear_ambient_capability_set().needed_for(failed, what)?;
    let now = capabilities(None).needed_for(failed, what)?;
    let sets = CapabilitySets {
        effective: now.effective & KEPT,
        permitted: now.permitted & KEPT,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets).needed_for(failed, what)?;
    set_no_new_privs(true).needed_for(mechanism::NO_NEW_PRIVS, "set no_new_privs")
}

/// Lays Landlock over what is beneath `roots`: everything but making devices; and nobody outside is spoken to over
/// abstract sockets or signalled. `program` lies elsewhere and can only be run.
pub(crate) fn landlock(roots: &[BorrowedFd<'_>], program: BorrowedFd<'_>) -> Result<(), Mechanism> {
    let lacking = |why: &dyn std::fmt::Display| Mechanism::lacking(mechanism::LANDLOCK, why);
    match restrict(roots, program) {
        Ok(RulesetStatus::FullyEnforced) => Ok(()),
        Ok(RulesetStatus::PartiallyEnforced) => Err(lacking(&"in force in part: the kernel knows an older Landlock")),
        Ok(RulesetStatus::NotEnforced) => Err(lacking(&"the kernel has no Landlock, or it is not switched on")),
        Err(error) => Err(lacking(&error)),
    }
}

fn restrict(roots: &[BorrowedFd<'_>], program: BorrowedFd<'_>) -> io::Result<RulesetStatus> {
    let allowed = AccessFs::from_all(LANDLOCK) & !(AccessFs::MakeChar | AccessFs::MakeBlock);
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(LANDLOCK))
        .and_then(|ruleset| ruleset.scope(Scope::from_all(LANDLOCK)))
        .and_then(Ruleset::create)
        .map_err(io::Error::other)?;
    for root in roots {
        ruleset = ruleset
            .add_rule(PathBeneath::new(root, allowed))
            .map_err(io::Error::other)?;
    }
    ruleset = ruleset
        .add_rule(PathBeneath::new(program, AccessFs::Execute | AccessFs::ReadFile))
        .map_err(io::Error::other)?;
    ruleset
        .restrict_self()
        .map(|status| status.ruleset)
        .map_err(io::Error::other)
}
