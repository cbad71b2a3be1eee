// Rules that find faults; how the code is laid out is not their subject.
import js from "@eslint/js";
import globals from "globals";

export default [
  js.configs.recommended,
  {
    files: ["static/**/*.js", "deploy/examples/**/page/*.js"],
    languageOptions: { globals: globals.browser },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      "no-control-regex": "off", // JSON has control characters for its subject
      "no-unused-vars": ["error", { ignoreRestSiblings: true, varsIgnorePattern: "^JsonpClient$" }],
      "array-callback-return": "error",
      eqeqeq: "error",
      "no-constructor-return": "error",
      "no-implicit-coercion": "error",
      "no-self-compare": "error",
      "no-template-curly-in-string": "error",
      "no-unmodified-loop-condition": "error",
      "no-unreachable-loop": "error",
      "no-var": "error",
      "prefer-const": "error",
      "require-atomic-updates": "error",
    },
  },
  { files: ["static/jsonp/*.js"], languageOptions: { sourceType: "script" } },
  { files: ["static/jsonp/page.js"], languageOptions: { globals: { JsonpClient: "readonly" } } },
  { files: ["tests/static/**/*.js", "deploy/examples/**/*.mjs"], languageOptions: { globals: globals.node } },
];
