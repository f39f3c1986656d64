//! Sessions: commands of a shell, each with what it prints, replayed.

use std::process::Stdio;

use tokio::process::Command;

use crate::page::Block;

/// Stands for anything.
const ANYTHING: char = '…';
const MARK: &str = "-- end of the step --";

/// What a session needs that is not on the page.
#[derive(Default)]
pub(crate) struct Around {
    /// Run before the session.
    pub(crate) before: String,
    /// Run after each command that goes on in the background: a person takes longer to type the next line.
    pub(crate) after_background: String,
}

/// Runs the commands of all blocks in one bash, and compares what each prints.
pub(crate) async fn replay(blocks: &[Block], around: &Around, mut prepare: impl FnMut(&mut Command)) {
    let steps: Vec<_> = blocks.iter().flat_map(|block| steps(&block.text)).collect();
    assert!(steps.len() > 4, "{}", blocks[0].place);
    let mut script = format!("trap 'kill $(jobs -p) 2>/dev/null' EXIT\n{}\n", around.before);
    for (command, _) in &steps {
        script.push_str(command);
        if command.ends_with('&') {
            script.push_str(&format!("\n{}", around.after_background));
        }
        script.push_str(&format!("\necho; echo '{MARK}'\n"));
    }
    let mut bash = Command::new("timeout");
    bash.args(["120", "bash", "-c", &script]).stdin(Stdio::null());
    prepare(&mut bash);
    let out = String::from_utf8(bash.output().await.unwrap().stdout).unwrap();
    let answers: Vec<&str> = out.split(MARK).collect();
    assert_eq!(answers.len(), steps.len() + 1, "it went wrong after:\n{out}");
    for ((command, shown), answer) in steps.iter().zip(answers) {
        assert!(
            is_like(answer, shown),
            "{command}\nis shown to answer\n{shown}\nand answers\n{answer}"
        );
    }
}

/// Commands of a session, each with what it prints.
fn steps(session: &str) -> Vec<(String, String)> {
    let mut steps: Vec<(String, String)> = Vec::new();
    for line in session.lines() {
        match line.strip_prefix("$ ") {
            Some(command) => steps.push((command.to_owned(), String::new())),
            None => {
                let (_, shown) = steps.last_mut().expect("a session begins with a command");
                shown.push_str(line);
                shown.push('\n');
            }
        }
    }
    steps
}

/// White space does not count: `buf` indents as it likes, and columns are as wide as what is in them.
pub(crate) fn is_like(answer: &str, shown: &str) -> bool {
    let dense = |text: &str| text.split_whitespace().collect::<String>();
    let (answer, shown) = (dense(answer), dense(shown));
    let pieces: Vec<&str> = shown.split(ANYTHING).collect();
    let [first, middle @ .., last] = &pieces[..] else {
        return answer == shown;
    };
    let Some(mut rest) = answer.strip_prefix(first) else {
        return false;
    };
    for piece in middle {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

#[test]
fn three_dots_stand_for_anything() {
    assert!(is_like("{ \"a\": 1,\n \"b\": 2 }", "{\"a\": …, \"b\": 2}") && is_like("x", "…") && is_like("", ""));
    assert!(
        !is_like("{\"a\": 1}", "{\"a\": 2}") && !is_like("ab", "a") && !is_like("ba", "…b") && !is_like("ab", "b…")
    );
    assert!(is_like("aXbXb", "a…b"));
}
