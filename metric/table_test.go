package metric_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
)

// promised are the names and labels that the outside contract lists, written out
// again here on purpose: people build dashboards and alerts on them.
const promised = `
MessagesReceived, MessagesSent, MessagesDropped{reason}, MessagesFiltered, MessagesExpired, MessagesReturned{reason},
MessagesReordered, MessagesInFlight (gauge), SendRetries, SendRetryBudgetExhausted, DeliveryE2ELatency (histogram),
DLQEntries{category}, DLQWriteFailures, DLQDepth, OutboxDepth, OutboxPersistLatency, OutboxDrainLatency,
OutboxCompletions, OutboxReplays, OutboxDuplicateSuppressed, OutboxExpiredBeforeSend,
MQTTUnsettled, MQTTOldestUnsettledAge (seconds), MQTTReceiveWindowUtilization (ratio), MQTTReceiveWindowExceeded,
MQTTAckAfterReconnect, MQTTSessionRecoveryRecycle, MQTTReceiverEmitRejected{outcome}, MQTTRouterDropped,
MQTTRouterBuffered, MQTTRouterOverflowDropped, MQTTRouterStalePurged, MQTTIngressPoisonDropped,
MQTTIngressUserPropertiesTruncated, MQTTQoSDowngraded, MQTTSessionResumeLost, MQTTSessionTakeover,
MQTTRouterUnmatchedDropped, MQTTRouterCoveredRetained, MQTTIngressHeaderDropped, MQTTReconnects,
MQTTConnectFailures{code}, MQTTPublishFailures{code}, MQTTPublishLatency, CredentialRotations, ConfigGeneration,
ConfigReloadFailures, LeaseTransfers, SessionRebuilds, StoreSalvaged, DLQDuplicateSuppressed`

// promisedLabels are all the labels there may be.
var promisedLabels = []string{"route_id", "session_id", "binding_id", "store", "reason", "category", "outcome", "code"}

func byName(name string) *metric.Desc {
	i := slices.IndexFunc(metric.Table, func(d *metric.Desc) bool { return d.Name == name })
	if i < 0 {
		return nil
	}
	return metric.Table[i]
}

func TestTableHoldsEveryPromisedMetricAndNoOther(t *testing.T) {
	var want []string
	for item := range strings.SplitSeq(promised, ",") {
		name, note, _ := strings.Cut(strings.TrimSpace(item), " ")
		name, label, _ := strings.Cut(strings.TrimSuffix(name, "}"), "{")
		want = append(want, name)
		d := byName(name)
		if d == nil {
			t.Errorf("%s is not in the table", name)
			continue
		}
		if label != "" && !slices.Contains(d.Labels, label) {
			t.Errorf("%s has labels %v, want %s among them", name, d.Labels, label)
		}
		switch note = strings.Trim(note, "()"); note {
		case "gauge", "histogram":
			if d.Kind.String() != note {
				t.Errorf("%s is a %s, want a %s", name, d.Kind, note)
			}
		case "seconds", "ratio":
			if d.Unit != note {
				t.Errorf("%s has unit %q, want %q", name, d.Unit, note)
			}
		}
	}
	var got []string
	for _, d := range metric.Table {
		got = append(got, d.Name)
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names of the table (-promised +got):\n%s", diff)
	}
}

func TestEveryMetricIsDescribed(t *testing.T) {
	seen := map[string]bool{}
	for _, d := range metric.Table {
		prom := metric.PromName(d)
		if seen[prom] {
			t.Errorf("%s: %s is not unique", d.Name, prom)
		}
		seen[prom] = true
		if !strings.HasPrefix(metric.PromHelp(d), d.Name+": ") || !strings.HasSuffix(d.Help, ".") {
			t.Errorf("%s: help is %q, want the catalogue name and a sentence", d.Name, metric.PromHelp(d))
		}
		if d.Kind == metric.KindHistogram && d.Unit != "seconds" {
			t.Errorf("%s: histograms count seconds, unit is %q", d.Name, d.Unit)
		}
		for _, label := range d.Labels {
			if !slices.Contains(promisedLabels, label) {
				t.Errorf("%s: label %s is not a promised one", d.Name, label)
			}
			_, closed := d.Values[label]
			if fromConfig := strings.HasSuffix(label, "_id"); closed == fromConfig {
				t.Errorf("%s: label %s: closed set %v; ids come from the config, everything else is closed", d.Name, label, closed)
			}
		}
		for label, values := range d.Values {
			if !slices.Contains(d.Labels, label) {
				t.Errorf("%s: values for a label that it does not have: %s", d.Name, label)
			}
			if !slices.Contains(values, metric.Other) {
				t.Errorf("%s: the values of %s lack %q", d.Name, label, metric.Other)
			}
		}
	}
}

func TestClosedSetsHoldThePromisedValues(t *testing.T) {
	for _, c := range []struct {
		metric *metric.Desc
		label  string
		values []string
	}{
		{metric.MessagesDropped, "reason", []string{
			"retry_unsupported", "retry_unsupported_dlq_failed", "qos0_shed", "permanent", "poison", "unstable_identity",
			"subscription_removed",
		}},
		{metric.MQTTReceiverEmitRejected, "outcome", []string{"recovering", "lost"}},
		{metric.MQTTSessionTakeover, "reason", []string{"inferred", "reported"}},
		{metric.OutboxDuplicateSuppressed, "reason", []string{"identity_conflict"}},
		{metric.DLQEntries, "category", []string{
			string(gobridge.CategoryPermanent), string(gobridge.CategoryExpired), string(gobridge.CategoryPoison),
			string(gobridge.CategoryUnstableIdentity), string(gobridge.CategoryRetryUnsupported),
			string(gobridge.CategoryFiltered), string(gobridge.CategorySubscriptionRemoved),
		}},
		{metric.MQTTConnectFailures, "code", declaredCodes(t)},
		{metric.MQTTPublishFailures, "code", declaredCodes(t)},
	} {
		for _, v := range c.values {
			if !slices.Contains(c.metric.Values[c.label], v) {
				t.Errorf("%s: %s %q is not in the closed set %v", c.metric.Name, c.label, v, c.metric.Values[c.label])
			}
		}
	}
	want := append(declaredCodes(t), metric.Other)
	got := slices.Clone(metric.MQTTConnectFailures.Values["code"])
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("codes (-declared in package gobridge +closed set):\n%s", diff)
	}
}

func TestPromName(t *testing.T) {
	for name, want := range map[string]string{
		"MessagesReceived":                   "gobridge_messages_received_total",
		"MessagesInFlight":                   "gobridge_messages_in_flight",
		"DeliveryE2ELatency":                 "gobridge_delivery_e2e_latency_seconds",
		"DLQEntries":                         "gobridge_dlq_entries_total",
		"DLQDepth":                           "gobridge_dlq_depth",
		"MQTTUnsettled":                      "gobridge_mqtt_unsettled",
		"MQTTOldestUnsettledAge":             "gobridge_mqtt_oldest_unsettled_age_seconds",
		"MQTTReceiveWindowUtilization":       "gobridge_mqtt_receive_window_utilization_ratio",
		"MQTTQoSDowngraded":                  "gobridge_mqtt_qos_downgraded_total",
		"MQTTIngressUserPropertiesTruncated": "gobridge_mqtt_ingress_user_properties_truncated_total",
		"OutboxPersistLatency":               "gobridge_outbox_persist_latency_seconds",
		"ConfigGeneration":                   "gobridge_config_generation",
	} {
		if got := metric.PromName(byName(name)); got != want {
			t.Errorf("PromName(%s) = %s, want %s", name, got, want)
		}
	}
}
