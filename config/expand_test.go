package config

import "testing"

func TestExpand(t *testing.T) {
	t.Parallel()
	env := func(name string) (string, bool) {
		v, ok := map[string]string{"A": "a", "EMPTY": "", "NESTED": "${A}", "_x9": "under"}[name]
		return v, ok
	}
	tests := []struct{ in, want, fault string }{
		{"plain $ text {topic}", "plain $ text {topic}", ""},
		{"${A}", "a", ""},
		{"x${A}y${A}", "xaya", ""},
		{"${EMPTY}", "", ""},
		{"${EMPTY:-d}", "d", ""},
		{"${NONE:-}", "", ""},
		{"${NONE:-a:-b}", "a:-b", ""},
		{"${NESTED}", "${A}", ""},
		{"${_x9}", "under", ""},
		{"$${A}", "${A}", ""},
		{"$${A} ${A}", "${A} a", ""},
		{"$$${A}", "$${A}", ""},
		{"$A", "$A", ""},
		{"${NONE}", "", "environment variable NONE is not set"},
		{"${A", "", "${ without a closing }"},
		{"${}", "", "no variable name after ${"},
		{"${9A}", "", "no variable name after ${"},
		{"${A-b}", "", "no variable name after ${"},
		{"${NONE:-${A}}", "", "the default of ${NONE} holds another ${"},
	}
	for _, tt := range tests {
		got, _, what, _ := expand(tt.in, env)
		if got != tt.want || what != tt.fault {
			t.Errorf("expand(%q) = %q, %q; want %q, %q", tt.in, got, what, tt.want, tt.fault)
		}
		if back, _, what, _ := expand(escape(got), env); back != got || what != "" {
			t.Errorf("expand(escape(%q)) = %q, %q", got, back, what)
		}
	}
}

func TestHideLeavesNoExpandedText(t *testing.T) {
	t.Parallel()
	subs := []substitution{
		{"tcp://ops:hunter2secret@h", "${URL}", []string{"tcp://ops:hunter2secret@h"}},
		{"ab", "${AB}", []string{"ab"}},
		{"a\"b\"c", "${Q}", []string{"a\"b\"c"}},
	}
	tests := []struct{ in, want string }{
		{"url tcp://ops:hunter2secret@h is bad", "url ${URL} is bad"},
		{`invalid port ":hunter2secret@h"`, `invalid port "[...]"`},
		{`no session "ab", about that`, `no session "${AB}", about that`},
		{`no session "a\"b\"c"`, `no session "${Q}"`},
		{"nothing of it", "nothing of it"},
	}
	for _, tt := range tests {
		if got := hide(tt.in, subs); got != tt.want {
			t.Errorf("hide(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
}

func TestNearestKey(t *testing.T) {
	t.Parallel()
	keys := []string{"id", "session_mode", "session_expiry_interval", "max_in_flight", "send_timeout", "qos"}
	for key, want := range map[string]string{
		"sesion_expiry": "session_expiry_interval",
		"sessionMode":   "session_mode",
		"session-mode":  "session_mode",
		"max_inflight":  "max_in_flight",
		"sned_timeout":  "send_timeout",
		"Qos":           "qos",
		"qso":           "qos",
		"ID":            "id",
		"x":             "",
		"policy":        "",
		"":              "",
	} {
		if got := nearest(key, keys); got != want {
			t.Errorf("nearest(%q) = %q, want %q", key, got, want)
		}
	}
}
