//! On a terminal: keys, sizes and signals reach the command, the terminal is given back as it was, and colours are shown
//! there only.

use rustix::process::{Pid, Signal, kill_process};

use super::{
    stage::{Stage, noise},
    terminal::{Terminal, exit_code},
};

const CTRL_C: &[u8] = &[3];

#[tokio::test]
async fn the_command_has_a_terminal_of_that_size() {
    let stage = Stage::new().await;
    let terminal = Terminal::new(100, 40);
    let before = terminal.modes();
    let script = "stty size; echo $TERM; test -t 0 && test -t 1 && test -t 2 && echo all; \
                  trap 'stty size; exit 7' WINCH; echo ready; while :; do sleep 0.02; done";
    let child = terminal.begin(&stage, &["exec", "demo", "-it", "--", "sh", "-c", script], &[]);
    terminal.until("ready").await;
    assert!(
        terminal.text().contains("40 100\r\nxterm\r\nall\r\n"),
        "{}",
        terminal.text()
    );
    assert_ne!(terminal.modes(), before, "it is not raw");
    terminal.resize(132, 50);
    assert_eq!(exit_code(child).await, Some(7));
    terminal.until("50 132").await;
    assert_eq!(terminal.modes(), before);
}

#[tokio::test]
async fn keys_reach_the_command() {
    let stage = Stage::new().await;
    let terminal = Terminal::new(80, 24);
    let before = terminal.modes();
    let script = "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.02; done";
    let child = terminal.begin(&stage, &["exec", "demo", "-it", "--", "sh", "-c", script], &[]);
    terminal.until("ready").await;
    terminal.type_in(CTRL_C);
    assert_eq!(exit_code(child).await, Some(5));
    terminal.until("caught").await;

    let child = terminal.begin(
        &stage,
        &["exec", "demo", "-it", "--", "sh", "-c", "echo steady; exec sleep 1000"],
        &[],
    );
    terminal.until("steady").await;
    terminal.type_in(CTRL_C);
    assert_eq!(exit_code(child).await, Some(130));

    let child = terminal.begin(
        &stage,
        &[
            "exec",
            "demo",
            "-it",
            "--",
            "sh",
            "-c",
            "echo name?; read x; echo hello $x",
        ],
        &[],
    );
    terminal.until("name?").await;
    terminal.type_in(b"worle\x7fd\r");
    assert_eq!(exit_code(child).await, Some(0));
    terminal.until("hello world").await;
    assert_eq!(terminal.modes(), before);
    stage.until_idle().await;
}

#[tokio::test]
async fn without_i_or_t_ctrl_c_is_a_signal() {
    let stage = Stage::new().await;
    let terminal = Terminal::new(80, 24);
    let script = "trap 'echo caught; exit 6' INT; echo ready; while :; do sleep 0.02; done";
    let child = terminal.begin(&stage, &["exec", "demo", "--", "sh", "-c", script], &[]);
    terminal.until("ready").await;
    terminal.type_in(CTRL_C);
    assert_eq!(exit_code(child).await, Some(6));
    terminal.until("caught").await;
}

#[tokio::test]
async fn the_terminal_is_given_back_on_every_way_out() {
    let stage = Stage::new().await;
    let terminal = Terminal::new(80, 24);
    let before = terminal.modes();
    let forever = [
        "exec",
        "demo",
        "-it",
        "--",
        "sh",
        "-c",
        "echo ready; trap '' TERM; while :; do sleep 0.02; done",
    ];

    // Three signals: it leaves the command alone.
    let child = terminal.begin(&stage, &forever, &[]);
    terminal.until_raw().await;
    terminal.until("ready").await;
    let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    let ended = tokio::spawn(exit_code(child));
    while !ended.is_finished() {
        // Two that come at once are one.
        _ = kill_process(pid, Signal::TERM);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(ended.await.unwrap(), Some(143));
    terminal.until("not waiting any longer: exec ").await;
    assert_eq!(terminal.modes(), before);

    // The sandbox goes.
    let child = terminal.begin(&stage, &forever, &[]);
    terminal.until_raw().await;
    until_running(&stage, 2).await;
    stage.ok(&["rm", "demo"]).await;
    assert_eq!(exit_code(child).await, Some(125));
    terminal.until("sandgate: ").await;
    assert_eq!(terminal.modes(), before);

    // It never starts.
    let terminal = Terminal::new(80, 24);
    let before = terminal.modes();
    let (code, text) = terminal.run(&stage, &forever, &[]).await;
    assert_eq!(code, Some(125));
    assert!(
        text.starts_with("sandgate: there is no sandbox demo (SANDBOX_NOT_FOUND"),
        "{text}"
    );
    assert_eq!(terminal.modes(), before);
}

async fn until_running(stage: &Stage, count: usize) {
    super::stage::until("the command does not run", async || {
        stage.json(&["ps", "demo", "--alive"]).await["execs"]
            .as_array()
            .unwrap()
            .len()
            == count
    })
    .await;
}

#[tokio::test]
async fn a_shell_is_at_home() {
    let stage = Stage::new().await;
    let terminal = Terminal::new(80, 24);
    let before = terminal.modes();
    let child = terminal.begin(&stage, &["shell", "demo"], &[]);
    terminal.until_raw().await;
    terminal.type_in(b"echo $((6 * 7)); tty; exit 3\r");
    assert_eq!(exit_code(child).await, Some(3));
    terminal.until("42\r\n/dev/pts/").await;
    assert_eq!(terminal.modes(), before);

    let terminal = Terminal::new(80, 24);
    let child = terminal.begin(&stage, &["run", "-it", "--", "sh"], &[]);
    terminal.until_raw().await;
    terminal.type_in(b"echo in $((40 + 2)); exit 4\r");
    assert_eq!(exit_code(child).await, Some(4));
    terminal.until("in 42\r\n").await;
}

#[tokio::test]
async fn colours_are_for_terminals() {
    let stage = Stage::empty().await;
    let show = async |args: &[&str], vars: &[(&str, &str)]| Terminal::new(100, 40).run(&stage, args, vars).await;
    let (code, text) = show(&["ls"], &[]).await;
    assert_eq!(
        (code, text.as_str()),
        (Some(0), "No sandboxes. Make one: sandgate create\r\n")
    );
    stage.ok(&["create", "demo"]).await;
    for args in [&["ls"][..], &["get", "demo"], &["doctor"]] {
        assert!(
            show(args, &[]).await.1.contains("\x1b["),
            "{args:?} has no colours on a terminal"
        );
        assert!(
            show(args, &[("NO_COLOR", "")]).await.1.contains("\x1b["),
            "{args:?}: empty is as if not set"
        );
        for plain in [("NO_COLOR", "1"), ("TERM", "dumb")] {
            let (code, text) = show(args, &[plain]).await;
            assert_eq!(code, Some(0));
            assert!(!text.contains('\x1b'), "{args:?} {plain:?}: {text}");
        }
        assert!(!stage.ok(args).await.contains('\x1b'), "{args:?} has colours in a pipe");
        assert!(
            !show(&[&["-o", "json"], args].concat(), &[]).await.1.contains('\x1b'),
            "{args:?} as JSON"
        );
    }
    let (code, text) = show(&["ls", "--nonsense"], &[("NO_COLOR", "1")]).await;
    assert_eq!(code, Some(64));
    assert!(!text.contains('\x1b'), "{text}");
}

#[tokio::test]
async fn progress_is_for_terminals() {
    let stage = Stage::new().await;
    stage.write("big", noise(32 << 20));
    let (code, text) = Terminal::new(100, 40)
        .run(&stage, &["cp", "big", "demo:big"], &[])
        .await;
    assert_eq!(code, Some(0));
    assert!(text.contains("/32.00 MiB"), "{text:?}");
    // It is taken away in the end, and in a pipe it never is.
    assert!(
        text.ends_with("\x1b[2K") || text.ends_with('\r') || text.ends_with("\x1b[K"),
        "{text:?}"
    );
    let did = stage.run(&["cp", "big", "demo:big"]).await;
    assert_eq!((did.code, did.text().as_str(), did.err.as_str()), (Some(0), "", ""));
}
