package gobridge

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

func TestSecretNeverPrintsItself(t *testing.T) {
	const value = "S3cr3t!$@"
	type account struct {
		Name     string `yaml:"name"`
		Password Secret `yaml:"password"`
		hidden   Secret
	}
	a := account{"ops", NewSecret(value), NewSecret(value)}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%p", "%z"} {
		for _, v := range []any{a, &a, a.Password, &a.Password, []Secret{a.Password}, map[string]Secret{"p": a.Password}, struct{ s Secret }{a.hidden}} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
	}
	fmt.Fprintln(&out, a, &a, a.Password, fmt.Errorf("login: %v", a.Password))
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(h).Info("connect", "password", a.Password, "account", a, "pointer", &a.Password)
	}
	j, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := yaml.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(j)
	out.Write(y)
	for _, leak := range []string{value, fmt.Sprintf("%x", value), fmt.Sprintf("%X", value), "S3cr3t"} {
		if strings.Contains(out.String(), leak) {
			t.Fatalf("%q leaks:\n%s", leak, out.String())
		}
	}
	if want := `{"Name":"ops","Password":"[redacted]"}`; string(j) != want {
		t.Errorf("JSON %s, want %s", j, want)
	}
	if want := "name: ops\npassword: '[redacted]'\n"; string(y) != want {
		t.Errorf("YAML %q, want %q", y, want)
	}
	if a.Password.Reveal() != value {
		t.Error("the secret lost its value")
	}
}

func TestSecretIsReadFromText(t *testing.T) {
	var v struct {
		Password Secret `yaml:"password"`
		Unset    Secret `yaml:"unset"`
	}
	if err := yaml.Unmarshal([]byte("password: hunter2\nunset: \"\"\n"), &v); err != nil {
		t.Fatal(err)
	}
	if v.Password.Reveal() != "hunter2" || !v.Password.IsSet() || v.Unset.IsSet() || v.Unset.String() != "" || v.Unset.Reveal() != "" {
		t.Errorf("read %q and %q", v.Password.Reveal(), v.Unset.Reveal())
	}
	if !v.Password.Equal(NewSecret("hunter2")) || v.Password.Equal(v.Unset) {
		t.Error("Equal does not compare values")
	}
}

func TestSecondsTakeANumberOrADuration(t *testing.T) {
	for _, tc := range []struct {
		text string
		want Seconds
		err  string
	}{
		{"30", 30, ""},
		{"0", 0, ""},
		{"-1", -1, ""},
		{"12h", 43200, ""},
		{"1m30s", 90, ""},
		{"1500ms", 0, `"1500ms" is not a whole number of seconds`},
		{"1.5", 0, `"1.5" is neither a number of seconds nor a duration (write 30, 30s or 12h)`},
		{"soon", 0, `"soon" is neither a number of seconds nor a duration (write 30, 30s or 12h)`},
	} {
		var got Seconds
		err := got.UnmarshalText([]byte(tc.text))
		if msg := fmt.Sprint(err); got != tc.want || (tc.err == "" && err != nil) || (tc.err != "" && msg != tc.err) {
			t.Errorf("%q: %v, %v; want %v, %v", tc.text, got, err, tc.want, tc.err)
		}
	}
	if s := Seconds(90); s.String() != "90s" || s.Duration().String() != "1m30s" {
		t.Errorf("%v, %v", s, s.Duration())
	}
	if d := Seconds(1 << 60).Duration(); d <= 0 {
		t.Errorf("a huge number of seconds overflows to %v", d)
	}
}
