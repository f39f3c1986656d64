//! The example of the README: a sandbox, a command that is followed, files, a command that is waited for.

use std::io::Write as _;

use sandgate::{Client, Command, Event};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::from_env().await?;
    let sandbox = client.create().name("example").send().await?.sandbox;

    let mut exec = sandbox.exec(Command::shell("echo one; sleep 1; echo two; exit 3"));
    while let Some(event) = exec.next().await {
        match event? {
            Event::Output { data, .. } => std::io::stdout().write_all(&data)?,
            Event::Exited(exit) => writeln!(std::io::stdout(), "{:?}", exit.status)?,
            _ => {}
        }
    }

    sandbox.upload("answer.py", "print(6 * 7)").await?;
    let output = sandbox.exec(Command::new(["python3", "answer.py"])).output().await?;
    assert_eq!(output.stdout, "42\n");

    sandbox.delete().await?;
    Ok(())
}
