//! A glob as a small state machine over the components of a path, so that a walk knows at every directory whether
//! anything in it can still match, and so that "wildcards do not match a leading dot" can be said per component.

use globset::{Candidate, GlobBuilder, GlobMatcher};

/// `{a,b}{c,d}…` multiplies; more than this is no pattern that someone meant.
const MAX_ALTERNATIVES: usize = 256;
const MAX_LENGTH: usize = 4095;

/// A pattern that was understood.
#[derive(Debug)]
pub(crate) struct Pattern {
    /// One for each choice of braces.
    alternatives: Vec<Vec<Part>>,
    include_hidden: bool,
}

#[derive(Debug)]
enum Part {
    /// `**`: any number of directories.
    Deep,
    Literal(Vec<u8>),
    Wild {
        matcher: GlobMatcher,
        /// It begins with a dot that was written out.
        dot: bool,
    },
}

/// How far a directory's path has come in the pattern: places in its alternatives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Progress(Vec<(u16, u16)>);

// === impl Pattern ===

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub(crate) fn new(pattern: &str, include_hidden: bool) -> Result<Self, String> {
        if pattern.len() > MAX_LENGTH {
            return Err(format!("the pattern has more than {MAX_LENGTH} bytes"));
        }
        let mut expanded = Vec::new();
        expand(pattern, &mut expanded)?;
        let alternatives = expanded
            .iter()
            .map(|pattern| parts(pattern))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            alternatives,
            include_hidden,
        })
    }

    /// Where the directory stands that the pattern is relative to.
    pub(crate) fn start(&self) -> Progress {
        let mut progress = Progress(Vec::new());
        for alternative in 0..self.alternatives.len() {
            self.reach(&mut progress, alternative, 0);
        }
        progress
    }

    /// Where a child of that directory stands.
    pub(crate) fn step(&self, from: &Progress, name: &[u8]) -> Progress {
        let hidden = name.first() == Some(&b'.') && !self.include_hidden;
        let mut progress = Progress(Vec::new());
        for (alternative, place) in from.0.iter().map(|(a, p)| (usize::from(*a), usize::from(*p))) {
            match self.alternatives[alternative].get(place) {
                Some(Part::Deep) if !hidden => self.reach(&mut progress, alternative, place),
                Some(Part::Literal(literal)) if literal == name => self.reach(&mut progress, alternative, place + 1),
                Some(Part::Wild { matcher, dot })
                    if (*dot || !hidden) && matcher.is_match_candidate(&Candidate::from_bytes(name)) =>
                {
                    self.reach(&mut progress, alternative, place + 1);
                }
                _ => {}
            }
        }
        progress
    }

    /// The path as a whole matches.
    pub(crate) fn matches(&self, at: &Progress) -> bool {
        at.0.iter()
            .any(|(alternative, place)| self.alternatives[usize::from(*alternative)].len() == usize::from(*place))
    }

    /// Something beneath the path can match.
    pub(crate) fn goes_on(&self, at: &Progress) -> bool {
        at.0.iter()
            .any(|(alternative, place)| self.alternatives[usize::from(*alternative)].len() > usize::from(*place))
    }

    fn reach(&self, progress: &mut Progress, alternative: usize, place: usize) {
        // Both are bounded: alternatives by a constant, places by the length of a pattern.
        let (Ok(a), Ok(p)) = (u16::try_from(alternative), u16::try_from(place)) else {
            return;
        };
        if !progress.0.contains(&(a, p)) {
            progress.0.push((a, p));
        }
        if matches!(self.alternatives[alternative].get(place), Some(Part::Deep)) {
            self.reach(progress, alternative, place + 1);
        }
    }
}

fn parts(pattern: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    for component in components(pattern) {
        match component {
            "" | "." => {}
            ".." => return Err("a pattern can't hold `..`".to_owned()),
            "**" => {
                if !matches!(parts.last(), Some(Part::Deep)) {
                    parts.push(Part::Deep);
                }
            }
            component => parts.push(part(component)?),
        }
    }
    // `a/**` is everything beneath `a`, and not `a` itself.
    if matches!(parts.last(), Some(Part::Deep)) {
        parts.push(part("*")?);
    }
    if parts.is_empty() {
        return Err("the pattern is empty".to_owned());
    }
    if parts.len() > 1000 {
        return Err("the pattern has too many components".to_owned());
    }
    Ok(parts)
}

fn part(component: &str) -> Result<Part, String> {
    if !component.contains(['*', '?', '[', ']', '{', '}', '\\']) {
        return Ok(Part::Literal(component.as_bytes().to_vec()));
    }
    let glob = GlobBuilder::new(component)
        .literal_separator(true)
        .backslash_escape(true)
        .build();
    let matcher = glob.map_err(|error| error.to_string())?.compile_matcher();
    Ok(Part::Wild {
        matcher,
        dot: component.starts_with('.') || component.starts_with("\\."),
    })
}

/// Splits at `/`, but not within a class.
fn components(pattern: &str) -> Vec<&str> {
    let mut components = Vec::new();
    let mut start = 0;
    for (at, byte) in plain_bytes(pattern) {
        if byte == b'/' {
            components.push(&pattern[start..at]);
            start = at + 1;
        }
    }
    components.push(&pattern[start..]);
    components
}

/// Writes out the braces: `a{b,c/d}` becomes `ab` and `ac/d`.
fn expand(pattern: &str, into: &mut Vec<String>) -> Result<(), String> {
    let mut depth = 0_usize;
    let (mut open, mut cuts) = (0, Vec::new());
    for (at, byte) in plain_bytes(pattern) {
        match byte {
            b'{' => {
                if depth == 0 {
                    open = at;
                    cuts.push(at);
                }
                depth += 1;
            }
            b',' if depth == 1 => cuts.push(at),
            b'}' if depth == 1 => {
                cuts.push(at);
                for ends in cuts.windows(2) {
                    let choice = &pattern[ends[0] + 1..ends[1]];
                    expand(&format!("{}{choice}{}", &pattern[..open], &pattern[at + 1..]), into)?;
                }
                return Ok(());
            }
            b'}' if depth > 1 => depth -= 1,
            b'}' => return Err("a `}` has no `{` before it".to_owned()),
            _ => {}
        }
    }
    if depth > 0 {
        return Err("a `{` is not closed".to_owned());
    }
    if into.len() == MAX_ALTERNATIVES {
        return Err(format!("the braces make more than {MAX_ALTERNATIVES} alternatives"));
    }
    into.push(pattern.to_owned());
    Ok(())
}

/// The bytes that mean what they say: not escaped, and not in a class. All that is looked for here is ASCII.
fn plain_bytes(pattern: &str) -> impl Iterator<Item = (usize, u8)> + use<'_> {
    let bytes = pattern.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let byte = *bytes.get(at)?;
            let here = at;
            match byte {
                b'\\' => at += 2,
                b'[' => at = class_end(bytes, at),
                _ => {
                    at += 1;
                    return Some((here, byte));
                }
            }
        }
    })
}

/// Behind the `]` of a class; behind the `[` if it is not closed.
fn class_end(bytes: &[u8], open: usize) -> usize {
    let mut at = open + 1;
    if matches!(bytes.get(at), Some(b'!' | b'^')) {
        at += 1;
    }
    // A `]` in the first place is one of the characters.
    if bytes.get(at) == Some(&b']') {
        at += 1;
    }
    let close = bytes
        .get(at..)
        .and_then(|rest| rest.iter().position(|byte| *byte == b']'));
    close.map_or(open + 1, |close| at + close + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, include_hidden: bool, path: &str) -> bool {
        let pattern = Pattern::new(pattern, include_hidden).unwrap();
        let mut at = pattern.start();
        for name in path.split('/') {
            at = pattern.step(&at, name.as_bytes());
        }
        pattern.matches(&at)
    }

    #[test]
    fn patterns() {
        let table: &[(&str, &[&str], &[&str])] = &[
            ("*.rs", &["a.rs", "b.c.rs"], &["a/b.rs", ".rs", ".a.rs", "a.rsx"]),
            ("**/*.rs", &["a.rs", "a/b.rs", "a/b/c.rs"], &["a/.b.rs", ".a/b.rs"]),
            ("/a/b", &["a/b"], &["a", "b", "a/b/c"]),
            ("a//./b/", &["a/b"], &["a", "a/./b"]),
            ("a/**", &["a/b", "a/b/c"], &["a", "b", "a/.b", "a/.b/c"]),
            ("a/**/b", &["a/b", "a/x/b", "a/x/y/b"], &["a/x/b/c", "b"]),
            ("**", &["a", "a/b"], &[".a", "a/.b"]),
            ("**/**/a", &["a", "x/a", "x/y/a"], &["x"]),
            ("?", &["a"], &["ab", "a/b", "."]),
            ("[a-c]x", &["ax", "cx"], &["dx", "-x"]),
            ("[!a]x", &["bx"], &["ax", ".x"]),
            ("[]x]", &["]", "x"], &["["]),
            ("[{]", &["{"], &["}"]),
            ("{a,b/c,d*}/e", &["a/e", "b/c/e", "dd/e"], &["b/e", "c/e"]),
            ("a{,.b}", &["a", "a.b"], &["ab"]),
            ("{x{1,2},y}", &["x1", "x2", "y"], &["x", "1"]),
            (".*", &[".a"], &["a"]),
            (".git/**", &[".git/x"], &[".git/.x", "git/x"]),
            ("{.a,b}*", &[".ax", "bx"], &[".bx"]),
            ("*/.x", &["a/.x"], &[".a/.x"]),
            ("\\*", &["*"], &["a"]),
            ("\\{a,b\\}", &["{a,b}"], &["a", "b"]),
            ("a**b", &["ab", "axyb"], &["a/b"]),
        ];
        for (pattern, yes, no) in table {
            for path in *yes {
                assert!(matches(pattern, false, path), "{pattern} should match {path}");
            }
            for path in *no {
                assert!(!matches(pattern, false, path), "{pattern} should not match {path}");
            }
        }
        for (pattern, path) in [("*", ".a"), ("**", ".a/.b"), ("a/**/b", "a/.x/b"), ("[!a]x", ".x")] {
            assert!(
                matches(pattern, true, path),
                "{pattern} should match {path} with hidden ones"
            );
        }
    }

    #[test]
    fn a_walk_can_stop_early() {
        let pattern = Pattern::new("src/*/x", false).unwrap();
        let start = pattern.start();
        assert!(!pattern.goes_on(&pattern.step(&start, b"other")));
        let src = pattern.step(&start, b"src");
        assert!(pattern.goes_on(&src) && !pattern.matches(&src));
        let last = pattern.step(&pattern.step(&src, b"any"), b"x");
        assert!(pattern.matches(&last) && !pattern.goes_on(&last));
    }

    #[test]
    fn non_utf8_names_match_wildcards() {
        let pattern = Pattern::new("*.t", false).unwrap();
        assert!(pattern.matches(&pattern.step(&pattern.start(), b"\xff\xfe.t")));
    }

    #[test]
    fn bad_patterns_are_refused() {
        for bad in [
            "",
            "/",
            "{a",
            "a}",
            "[a",
            "a/../b",
            "..",
            "[z-a]",
            &"{a,b}".repeat(9),
            &"a/".repeat(1001),
        ] {
            assert!(Pattern::new(bad, false).is_err(), "{bad}");
        }
    }
}
