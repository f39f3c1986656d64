//! Which files of a walk are searched: include and exclude globs, hidden names, ignore files.

use globset::{Candidate, GlobBuilder, GlobSet, GlobSetBuilder};
use sandgate_proto::runtime::v1::GrepOp;

use super::ignores::Ignores;
use crate::walk::Entry;

/// The choice of one search.
pub(super) struct Filter {
    include: Option<Globs>,
    exclude: Globs,
    skip_hidden: bool,
    ignores: Option<Ignores>,
}

/// A glob without `/` is matched with the name, others with the path from the start of the search.
struct Globs {
    names: GlobSet,
    paths: GlobSet,
}

// === impl Filter ===

impl Filter {
    /// Reads the globs.
    ///
    /// # Errors
    /// Says what is wrong with one.
    pub(super) fn new(op: &GrepOp) -> Result<Self, String> {
        Ok(Self {
            include: (!op.include.is_empty()).then(|| Globs::new(&op.include)).transpose()?,
            exclude: Globs::new(&op.exclude)?,
            skip_hidden: op.skip_hidden,
            ignores: op.honour_ignore_files.then(Ignores::default),
        })
    }

    /// Whether the file is searched.
    pub(super) fn takes(&mut self, file: &Entry<'_>) -> bool {
        self.include.as_ref().is_none_or(|globs| globs.match_one(file)) && self.keeps(file)
    }

    /// Whether the directory is entered.
    pub(super) fn enters(&mut self, directory: &Entry<'_>) -> bool {
        if !self.keeps(directory) {
            return false;
        }
        if let Some(ignores) = &mut self.ignores {
            ignores.enter(directory);
        }
        true
    }

    fn keeps(&mut self, entry: &Entry<'_>) -> bool {
        let hidden = self.skip_hidden && entry.name.to_bytes().starts_with(b".");
        let excluded = hidden || self.exclude.match_one(entry);
        !excluded && self.ignores.as_mut().is_none_or(|ignores| !ignores.leaves_out(entry))
    }
}

// === impl Globs ===

impl Globs {
    fn new(globs: &[String]) -> Result<Self, String> {
        let (mut names, mut paths) = (GlobSetBuilder::new(), GlobSetBuilder::new());
        for glob in globs {
            // `dir/` is how many write a directory, `/x` how they say "only at the top".
            let trimmed = glob.trim_end_matches('/');
            let built = GlobBuilder::new(trimmed.trim_start_matches('/'))
                .literal_separator(true)
                .empty_alternates(true)
                .build()
                .map_err(|error| error.to_string())?;
            if trimmed.contains('/') {
                paths.add(built);
            } else {
                names.add(built);
            }
        }
        let build = |set: GlobSetBuilder| set.build().map_err(|error| error.to_string());
        Ok(Self {
            names: build(names)?,
            paths: build(paths)?,
        })
    }

    fn match_one(&self, entry: &Entry<'_>) -> bool {
        let matches =
            |set: &GlobSet, bytes: &[u8]| !set.is_empty() && set.is_match_candidate(&Candidate::from_bytes(bytes));
        matches(&self.names, entry.name.to_bytes()) || matches(&self.paths, entry.path)
    }
}
