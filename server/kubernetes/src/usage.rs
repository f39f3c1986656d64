//! What a sandbox may use, from its pod. What it does use only a metrics server knows, which not every cluster has.

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::api::resource::Quantity};
use sandgate_proto::v1::Usage;

/// The limits of all containers together; of none if one has none.
pub(crate) fn limits(pod: &Pod) -> Usage {
    let containers = pod.spec.as_ref().map_or(&[][..], |spec| &spec.containers);
    let sum = |resource: &str| {
        let of = containers.iter().map(|container| {
            let limits = container.resources.as_ref()?.limits.as_ref()?;
            thousandths(limits.get(resource)?)
        });
        of.sum::<Option<u64>>().filter(|sum| *sum > 0)
    };
    Usage {
        memory_limit_bytes: sum("memory").map(|sum| sum / 1000),
        cpu_limit_millis: sum("cpu").and_then(|sum| u32::try_from(sum).ok()),
        disk_limit_bytes: sum("ephemeral-storage").map(|sum| sum / 1000),
        ..Usage::default()
    }
}

/// A quantity in thousandths of its unit.
fn thousandths(quantity: &Quantity) -> Option<u64> {
    const SUFFIXES: &[(&str, u64)] = &[
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
    ];
    let text = quantity.0.as_str();
    if let Some(number) = text.strip_suffix('m') {
        return number.parse().ok();
    }
    let suffix = SUFFIXES
        .iter()
        .find_map(|(suffix, each)| Some((text.strip_suffix(suffix)?, *each)));
    let (number, each) = suffix.unwrap_or((text, 1));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole: u64 = whole.parse().ok()?;
    let fraction = format!("{fraction:0<3}").get(..3)?.parse::<u64>().ok()?;
    whole.checked_mul(1000)?.checked_add(fraction)?.checked_mul(each)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (text, expected) in [
            ("500m", Some(500)),
            ("2", Some(2_000)),
            ("1.5", Some(1_500)),
            ("64Mi", Some((64 << 20) * 1000)),
            ("1G", Some(1_000_000_000_000)),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(thousandths(&Quantity(text.to_owned())), expected, "{text}");
        }
    }

    #[test]
    fn one_container_without_a_limit_leaves_the_pod_without_one() {
        let pod = |second: serde_json::Value| -> Pod {
            serde_json::from_value(serde_json::json!({"spec": {"containers": [
                {"name": "a", "resources": {"limits": {"memory": "1Mi", "cpu": "500m"}}},
                {"name": "b", "resources": {"limits": second}},
            ]}}))
            .unwrap()
        };
        let usage = limits(&pod(serde_json::json!({"memory": "1Mi"})));
        assert_eq!(
            (usage.memory_limit_bytes, usage.cpu_limit_millis),
            (Some(2 << 20), None)
        );
    }
}
