//! Which tokens are good, and that no others are.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::{
    fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ed25519_dalek::{Signer as _, SigningKey, pkcs8::DecodePrivateKey as _};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use sandgate_auth::{Claims, Expected, JWKS_FILE, NewKey, Scope, Signer, TokenError, Verifier};
use serde_json::{Value, json};
use tempfile::TempDir;

const AUDIENCE: &str = "cluster.local/default/pod-1";
const ISSUED: u64 = 1_700_000_000;

/// A server's keys and a runtime that knows them.
struct Pair {
    key: SigningKey,
    public: TempDir,
    signer: Signer,
    verifier: Verifier,
}

fn pair() -> Pair {
    let (private, public) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let pem = NewKey::generate().unwrap().pem;
    fs::write(private.path().join("a.pem"), &pem).unwrap();
    let signer = Signer::open(private.path()).unwrap();
    fs::write(public.path().join(JWKS_FILE), signer.jwks().to_string()).unwrap();
    let verifier = Verifier::open(public.path()).unwrap();
    Pair {
        key: SigningKey::from_pkcs8_pem(&pem).unwrap(),
        public,
        signer,
        verifier,
    }
}

impl Pair {
    fn verify_at(&self, token: &str, seconds: u64) -> Result<Claims, TokenError> {
        self.verifier.verify(token, &expected(), at(seconds))
    }

    fn verify(&self, token: &str) -> Result<Claims, TokenError> {
        self.verify_at(token, ISSUED + 1)
    }

    fn changed(&self, change: impl FnOnce(&mut Claims)) -> Result<Claims, TokenError> {
        let mut claims = claims();
        change(&mut claims);
        self.verify(&self.signer.token(&claims))
    }

    /// Any text as header and claims, properly signed.
    fn sign(&self, header: &str, claims: &str) -> String {
        let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let signature = URL_SAFE_NO_PAD.encode(self.key.sign(signed.as_bytes()).to_bytes());
        format!("{signed}.{signature}")
    }

    fn header(&self) -> Value {
        let id = &self.signer.jwks()["keys"][0]["kid"];
        json!({"alg": "EdDSA", "typ": "sandgate+jwt", "kid": id})
    }
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

fn expected() -> Expected {
    Expected {
        audience: AUDIENCE.into(),
        pod_uid: Some("uid-1".into()),
        incarnation: "first".into(),
    }
}

fn claims() -> Claims {
    Claims {
        audience: AUDIENCE.into(),
        pod_uid: Some("uid-1".into()),
        incarnation: Some("first".into()),
        scope: Scope::Runtime,
        issued_at: ISSUED,
        not_before: None,
        expires_at: ISSUED + 60,
    }
}

#[test]
fn a_good_token_is_good_until_it_expires() {
    let pair = pair();
    let token = pair.signer.token(&claims());
    for second in [0, 1, 59] {
        assert_eq!(pair.verify_at(&token, ISSUED + second), Ok(claims()));
    }
    // It is remembered by now, and expires all the same.
    for second in [60, 61, 1_000_000] {
        assert_eq!(pair.verify_at(&token, ISSUED + second), Err(TokenError::Expired));
    }
    let fresh = pair
        .signer
        .token(&Claims::new(AUDIENCE, Scope::Hello, Duration::from_secs(600)));
    let hello = Expected {
        pod_uid: None,
        ..expected()
    };
    assert!(pair.verifier.verify(&fresh, &hello, SystemTime::now()).is_ok());
}

#[test]
fn only_for_the_one_it_names() {
    let pair = pair();
    let other = |audience: &str| pair.changed(|claims| claims.audience = audience.into());
    assert_eq!(other("cluster.local/default/pod-2"), Err(TokenError::Audience));
    assert_eq!(other(""), Err(TokenError::Audience));
    assert_eq!(
        pair.changed(|claims| claims.pod_uid = Some("uid-2".into())),
        Err(TokenError::PodUid)
    );
    assert_eq!(
        pair.changed(|claims| claims.incarnation = Some("second".into())),
        Err(TokenError::Incarnation)
    );
    assert!(matches!(
        pair.changed(|claims| claims.pod_uid = None),
        Err(TokenError::Malformed(_))
    ));
    // Remembered for one runtime is not good for another.
    let token = pair.signer.token(&claims());
    pair.verify(&token).unwrap();
    let other = Expected {
        audience: "cluster.local/default/pod-2".into(),
        ..expected()
    };
    assert_eq!(
        pair.verifier.verify(&token, &other, at(ISSUED + 1)),
        Err(TokenError::Audience)
    );
    // A runtime that was not told its UID does not look at it.
    let untold = Expected {
        pod_uid: None,
        ..expected()
    };
    assert!(pair.verifier.verify(&token, &untold, at(ISSUED + 1)).is_ok());
}

#[test]
fn only_hello_needs_no_incarnation() {
    let pair = pair();
    assert!(matches!(
        pair.changed(|claims| claims.incarnation = None),
        Err(TokenError::Malformed(_))
    ));
    let hello = |incarnation: Option<&str>| {
        pair.changed(|claims| {
            claims.scope = Scope::Hello;
            claims.incarnation = incarnation.map(Into::into);
        })
    };
    assert_eq!(hello(None).unwrap().scope, Scope::Hello);
    assert!(hello(Some("first")).is_ok());
    assert_eq!(hello(Some("second")), Err(TokenError::Incarnation));
}

#[test]
fn short_lived_and_not_from_the_future() {
    let pair = pair();
    let lives = |seconds: u64| pair.changed(|claims| claims.expires_at = ISSUED + seconds);
    assert!(lives(60).is_ok());
    assert_eq!(lives(61), Err(TokenError::LivesTooLong));
    assert_eq!(
        pair.changed(|claims| claims.expires_at = u64::MAX),
        Err(TokenError::LivesTooLong)
    );
    assert!(matches!(lives(0), Err(TokenError::Malformed(_))));
    assert!(matches!(
        pair.changed(|claims| claims.expires_at = ISSUED - 1),
        Err(TokenError::Malformed(_))
    ));
    let token = pair.signer.token(&claims());
    assert!(pair.verify_at(&token, ISSUED - 5).is_ok(), "clocks differ a little");
    assert_eq!(pair.verify_at(&token, ISSUED - 6), Err(TokenError::NotYet));
    assert_eq!(
        pair.changed(|claims| claims.not_before = Some(ISSUED + 30)),
        Err(TokenError::NotYet)
    );
}

#[test]
fn an_unknown_key_is_looked_for_again() {
    let pair = pair();
    let other = tempfile::tempdir().unwrap();
    fs::write(other.path().join("b.pem"), NewKey::generate().unwrap().pem).unwrap();
    let other = Signer::open(other.path()).unwrap();
    let token = other.token(&claims());
    assert_eq!(pair.verify(&token), Err(TokenError::UnknownKey));
    // As Kubernetes does it: a new directory, then one rename.
    let staged = pair.public.path().join("staged");
    fs::write(&staged, other.jwks().to_string()).unwrap();
    fs::rename(&staged, pair.public.path().join(JWKS_FILE)).unwrap();
    let begun = std::time::Instant::now();
    while pair.verify(&token).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(30), "never read again");
        std::thread::sleep(Duration::from_millis(50));
    }
    // The one that was there before is gone from the file.
    assert_eq!(pair.verify(&pair.signer.token(&claims())), Err(TokenError::UnknownKey));
}

#[test]
fn no_other_algorithm_type_or_header() {
    let pair = pair();
    let body = serde_json::to_string(&claims()).unwrap();
    assert!(pair.verify(&pair.sign(&pair.header().to_string(), &body)).is_ok());
    let with = |name: &str, value: Value| {
        let mut header = pair.header();
        header[name] = value;
        pair.verify(&pair.sign(&header.to_string(), &body))
    };
    for (name, value) in [
        ("alg", json!("none")),
        ("alg", json!("HS256")),
        ("alg", json!("eddsa")),
        ("alg", json!(null)),
        ("typ", json!("JWT")),
        ("crit", json!(["exp"])),
        ("b64", json!(false)),
        ("jwk", json!({})),
        ("kid", json!(1)),
    ] {
        let outcome = with(name, value.clone());
        assert!(
            matches!(outcome, Err(TokenError::Malformed(_))),
            "{name} {value}: {outcome:?}"
        );
    }
    assert_eq!(with("kid", json!("")), Err(TokenError::UnknownKey));
    // No signature, and a MAC made with the public key.
    let mut none = pair.header();
    none["alg"] = json!("none");
    let unsigned = format!(
        "{}.{}.",
        URL_SAFE_NO_PAD.encode(none.to_string()),
        URL_SAFE_NO_PAD.encode(&body)
    );
    assert!(pair.verify(&unsigned).is_err());
    let twice = pair.header().to_string().replacen('{', r#"{"alg":"EdDSA","#, 1);
    assert!(pair.verify(&pair.sign(&twice, &body)).is_err(), "a member twice");
    let twice = body.replacen('{', r#"{"aud":"other","#, 1);
    assert!(pair.verify(&pair.sign(&pair.header().to_string(), &twice)).is_err());
    let scope = body.replace("\"runtime\"", "\"everything\"");
    assert!(pair.verify(&pair.sign(&pair.header().to_string(), &scope)).is_err());
    let newer = body.replacen('{', r#"{"later":1,"#, 1);
    assert!(pair.verify(&pair.sign(&pair.header().to_string(), &newer)).is_ok());
}

#[test]
fn not_one_byte_may_differ() {
    let pair = pair();
    let token = pair.signer.token(&claims());
    pair.verify(&token).unwrap();
    for place in 0..token.len() {
        let mut bytes = token.clone().into_bytes();
        bytes[place] = if bytes[place] == b'A' { b'B' } else { b'A' };
        let other = String::from_utf8(bytes).unwrap();
        assert!(pair.verify(&other).is_err(), "byte {place}");
    }
    for other in [
        format!("{token}="),
        format!("{token}."),
        format!(".{token}"),
        format!(" {token}"),
        format!("{token}\n"),
        token.replace('.', ".."),
        token[..token.len() - 1].to_owned(),
        token.repeat(20),
    ] {
        assert!(pair.verify(&other).is_err(), "{other}");
    }
}

#[test]
fn nothing_makes_it_panic() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let pair = pair();
    let token = pair.signer.token(&claims());
    let body = serde_json::to_string(&claims()).unwrap();
    let alphabet: Vec<char> = "ABCabc019-_=.{}\":,\\\u{0}\u{fffd}ß".chars().collect();
    for _ in 0..1_000 {
        let text: String = match random.random_range(0..2) {
            0 => {
                let length = random.random_range(0..200);
                (0..length).filter_map(|_| alphabet.choose(&mut random)).collect()
            }
            _ => cut_and_paste(&mut random, &token),
        };
        if let Ok(read) = pair.verify(&text) {
            assert_eq!((read, &text), (claims(), &token));
        }
    }
    // Signed rightly, so that what lies behind the signature meets it too. Some of these are good.
    for _ in 0..100 {
        let text = pair.sign(&pair.header().to_string(), &cut_and_paste(&mut random, &body));
        if let Ok(read) = pair.verify(&text) {
            assert_eq!(
                (read.audience, read.incarnation),
                (claims().audience, claims().incarnation)
            );
        }
    }
}

/// The text with a few pieces taken out, doubled or replaced.
fn cut_and_paste(random: &mut StdRng, text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..random.random_range(1..4) {
        let from = random.random_range(0..bytes.len().max(1)).min(bytes.len());
        let to = (from + random.random_range(0..20)).min(bytes.len());
        let piece: Vec<u8> = bytes.drain(from..to).collect();
        match random.random_range(0..3) {
            0 => {}
            1 => drop(bytes.splice(from..from, piece.repeat(2))),
            _ => drop(bytes.splice(
                from..from,
                piece.iter().map(|byte| byte ^ (1 << random.random_range(0..7))),
            )),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
